"""Mistakes of people and programs: the error names the mistake, its place and the remedy, with the right exit code.

Tested elsewhere: pages with status 200, compressed and cut answers (test_bodies), compressed and cut requests, unknown
attachments, wrong and revoked tokens (tests/servlet/web/test_application, web/test_running, command/test_main),
addresses that are not a relay (tests/carriers/test_poll).
"""

import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from tests.servlet.rig import TOKENS, Client, exchange_body, relay, settings
from tests.servlet.support import connect
from tests.support.loops import in_loop
from tunnel import DeniedError, attach
from tunnel.wire import Answer
from tunnel_servlet.command.main import main


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


@pytest.fixture
def file() -> Path:
    """Write a configuration that works."""
    assert main(["init", "relay.toml", "--user", "ann"]) == 0
    return Path("relay.toml")


@in_loop
async def test_a_repeated_exchange_with_another_body_is_not_applied() -> None:
    """The first body counts (7.3): a later one of the same number is answered, but its packets are not read."""
    async with relay() as running, Client(running, "ann") as ann, Client(running, "bob") as bob:
        await ann.attach()
        await bob.attach(seed=2)
        counters = running.relay.host.switch.stats
        first = await ann.post(exchange_body(ann.epoch, 1, connect(11)))
        assert isinstance(first.message, Answer)
        received = counters().counters.packets_received
        again = await ann.post(exchange_body(ann.epoch, 1, connect(12), connect(13)))
        assert isinstance(again.message, Answer)
        assert again.message.number == 1
        assert counters().counters.packets_received == received
        assert isinstance((await bob.post(exchange_body(bob.epoch, 1, seed=2))).message, Answer)


@in_loop
async def test_a_target_that_no_rule_allows_is_denied() -> None:
    config = settings(exit="inline")
    async with relay(config) as running:
        url = f"http://{running.addresses[0]}"
        async with attach(url, token=TOKENS["exits"], proxy=None, carrier="poll") as attachment:
            with pytest.raises(
                DeniedError, match=r"no rule allows db\.internal:5432; .*ask the operator of the relay for a rule"
            ) as caught:
                await attachment.open_connection("db.internal", 5432, timeout=40)
            assert caught.value.exit_code == 5
            assert attachment.is_attached


def test_a_port_in_use_is_named(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        assert main(["serve", "--listen", where]) == 2
    assert f"cannot listen on {where}: " in (text := capsys.readouterr().err)
    assert "choose another address" in text


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ('lissen = ["127.0.0.1:1"]', "relay.toml: lissen: unknown key; did you mean listen?"),
        ("base = 7", "relay.toml: base: expected str"),
        ("limits.hedder_seconds = 1", "relay.toml: limits.hedder_seconds: unknown key; did you mean header_seconds?"),
        ('limits.header_seconds = "1"', "relay.toml: limits.header_seconds: expected a number, not '1'"),
        (
            "limits.header_seconds = 0",
            "relay.toml: limits: header_seconds must be at least 0.001 and at most 1099511627776, not 0",
        ),
        ('users.bob.connect = ["everything"]', "relay.toml: users.bob.connect: "),
        ("users.bob.exits = true", "relay.toml: users.bob.exits: unknown key; did you mean exit?"),
        ("=", "relay.toml: not TOML: "),
    ],
)
@pytest.mark.parametrize("command", ["serve", "check"])
def test_a_configuration_that_is_wrong_is_refused_with_the_mistake(
    file: Path, command: str, line: str, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    file.write_text(f"{line}\n")
    assert main([command]) == 2
    assert text in capsys.readouterr().err
