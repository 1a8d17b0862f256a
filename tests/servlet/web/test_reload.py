"""Files that cannot be used while the relay runs: the relay goes on with the tokens and rules that it has."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path

import msgspec
import pytest
from structlog.testing import capture_logs

from tests.servlet.rig import KEYS, LOOPBACK, Client, relay, settings
from tests.servlet.web.rig import SECRET, ask, certificates  # noqa: F401  # `certificates` is a fixture
from tests.support.loops import in_loop
from tunnel.wire import Attached
from tunnel_servlet.command.files import Overrides, load_config, reload_config, write_users
from tunnel_servlet.command.main import main
from tunnel_servlet.config import ConfigError, RelayConfig
from tunnel_servlet.web.running import RunningRelay

RULES = """\
listen = ["127.0.0.1:0"]
tokens = "keys.toml"
exit = "none"
[users.ann]
connect = ["db.internal:5432"]
[users.bob]
connect = ["db.internal:5432"]
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Write the configuration of a relay, and its tokens into a file beside it."""
    path = tmp_path / "relay.toml"
    path.write_text(RULES)
    write_users(tmp_path / "keys.toml", {user: KEYS[user] for user in ("ann", "bob")}, SECRET)
    return path


def running_with(file: Path) -> RunningRelay:
    given = Overrides(admin="127.0.0.1:0")
    return relay(load_config(str(file), given), load=partial(reload_config, str(file), given))


def _rewrite(file: Path, old: str, new: str) -> None:
    file.write_text(file.read_text().replace(old, new, 1))


def _cut_in_a_key(file: Path) -> None:
    tokens = file.with_name("keys.toml")
    tokens.write_text(tokens.read_text()[:-60])


def _cut_between_users(file: Path) -> None:
    tokens = file.with_name("keys.toml")
    tokens.write_text(tokens.read_text().partition('\n["bob"]')[0])


def _cut_after_a_name(file: Path) -> None:
    tokens = file.with_name("keys.toml")
    tokens.write_text(tokens.read_text().partition('["bob"]')[0] + '["bob"]\n# end\n')


def _unreadable(file: Path) -> None:
    tokens = file.with_name("keys.toml")
    tokens.unlink()
    tokens.mkdir()


def _pipe(file: Path) -> None:
    file.unlink()
    os.mkfifo(file, 0o600)


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "emptied": (lambda file: file.with_name("keys.toml").write_text(""), "keys.toml: the file is missing, or lists"),
    "missing": (lambda file: file.with_name("keys.toml").unlink(), "keys.toml: the file is missing, or lists no user"),
    "a comment alone": (lambda file: file.with_name("keys.toml").write_text("# x\n"), "lists no user: restore it"),
    "cut in a key": (_cut_in_a_key, "keys.toml: the file is not whole"),
    "cut between users": (_cut_between_users, "keys.toml: the file is not whole, because its line '# end' is missing"),
    "cut after a name": (_cut_after_a_name, "keys.toml: bob: the key `tokens` is missing"),
    "unreadable": (_unreadable, "keys.toml cannot be read"),
    "a pipe": (lambda file: _pipe(file.with_name("keys.toml")), "keys.toml cannot be read: it is no ordinary file"),
    "configuration a pipe": (_pipe, "relay.toml cannot be read: it is no ordinary file"),
    "not TOML": (lambda file: file.with_name("keys.toml").write_text("\0"), "keys.toml: not TOML"),
    "nested": (lambda file: file.with_name("keys.toml").write_text("a = " + "[" * 9999), "nested too deeply"),
    "configuration emptied": (lambda file: file.write_text(""), "tokens.toml: the file is missing, or lists no user"),
    "configuration missing": (lambda file: file.unlink(), "relay.toml: no such file"),
    "configuration broken": (lambda file: file.write_text(RULES + "[users.ann]"), "the table [users.ann] is there"),
    "no rule": (lambda file: file.write_text(RULES.partition("[users.ann]")[0]), "no rule allows anything"),
    "other tokens": (lambda file: file.write_text(RULES.replace("keys", "kyes")), "kyes.toml: the file is missing"),
}


@pytest.mark.parametrize(("damage", "text"), DAMAGES.values(), ids=DAMAGES)
@in_loop
async def test_two_users_stay_when_a_file_cannot_be_used(
    damage: Callable[[Path], object], text: str, file: Path
) -> None:
    async with running_with(file) as running, Client(running, "ann") as ann, Client(running, "bob") as bob:
        damage(file)
        with capture_logs() as logs:
            assert not running.reload()
        (line,) = logs
        assert (line["event"], line["log_level"]) == ("not_reloaded", "error")
        assert text in line["text"]
        assert "stays in force" in line["effect"]
        assert isinstance(await ann.attach(1), Attached)
        assert isinstance(await bob.attach(2), Attached)
        state = msgspec.json.decode((await ask(running, "/state"))[1])
        assert state["reloads"] == {"applied": 0, "failed": 1, "error": line["text"]}
        assert "\ntunnel_reloads_failed_total 1.0\n" in (await ask(running, "/metrics"))[1]
        assert (await ask(running, "/readyz"))[0] == 200


TLS = '[tls]\ncertificate = "C/relay.pem"\nkey = "C/relay.key"\nclient_ca = "C/ca.pem"\nclient_optional = true\n'
NEEDS_NO_TOKEN = {
    "provider": (
        '[sso]\nissuer = "https://login.example"\naudience = "tunnel"\n[groups.staff]\nservices = ["x"]\n',
        False,
    ),
    "certificates": ('certificates = ["CN:bob"]\n' + TLS, False),
    "open": ('[everyone]\nconnect = ["db.internal:5432"]\n', True),
}


@pytest.fixture
def without_tokens(
    request: pytest.FixtureRequest,
    file: Path,
    certificates: Path,  # noqa: F811
) -> Callable[[], RunningRelay]:
    """Let the relay have users that need no token, beside ann and bob, who have one each."""
    text, is_open = NEEDS_NO_TOKEN[request.param]
    listen = 'listen = ["http://127.0.0.1:0"]' if TLS in text else 'listen = ["127.0.0.1:0"]'
    file.write_text(RULES.replace('listen = ["127.0.0.1:0"]', listen) + text.replace("C/", f"{certificates}/"))
    given = Overrides(admin="127.0.0.1:0", is_open=is_open)
    return lambda: relay(load_config(str(file), given), load=partial(reload_config, str(file), given))


@pytest.mark.real("openssl")
@pytest.mark.parametrize("without_tokens", NEEDS_NO_TOKEN, indirect=True)
@pytest.mark.parametrize("damage", ["missing", "other tokens"])
@in_loop
async def test_two_users_tokens_stay_although_other_users_need_none(
    damage: str, without_tokens: Callable[[], RunningRelay], file: Path
) -> None:
    async with without_tokens() as running, Client(running, "ann") as ann, Client(running, "bob") as bob:
        if damage == "other tokens":
            _rewrite(file, "keys.toml", "kyes.toml")
        else:
            DAMAGES[damage][0](file)
        assert not running.reload()
        assert "the file is missing, or lists no user" in running.relay.reloads.error
        assert running.relay.tokens.users == ["ann", "bob"]
        assert running.relay.admin_secret == SECRET
        assert isinstance(await ann.attach(1), Attached)
        assert isinstance(await bob.attach(2), Attached)
        _rewrite(file, "kyes.toml", "keys.toml")
        write_users(file.with_name("keys.toml"), {"ann": ()}, SECRET)
        assert running.reload()  # this was meant
        assert running.relay.tokens.users == []


@pytest.mark.real("openssl")
@pytest.mark.parametrize("without_tokens", NEEDS_NO_TOKEN, indirect=True)
@in_loop
async def test_a_relay_without_tokens_reloads_and_keeps_its_admin_secret(
    without_tokens: Callable[[], RunningRelay], file: Path
) -> None:
    tokens = file.with_name("keys.toml")
    tokens.unlink()
    async with without_tokens() as running:  # it starts without the file
        _rewrite(file, "5432", "5433")
        assert running.reload()
        assert running.relay.grants.rules_of("ann").check_target("db.internal", 5433).allowed
        write_users(tokens, {}, SECRET)
        assert running.reload()
        assert running.reload()  # the same again
        tokens.write_text("")
        assert not running.reload()
        assert running.relay.admin_secret == SECRET


@in_loop
async def test_a_change_that_only_a_start_applies_is_said(file: Path) -> None:
    async with running_with(file) as running:
        for old, new, later in (
            ("connect", "services", []),
            ('exit = "none"', 'exit = "inline"', ["changes of exit take effect when the relay starts again"]),
        ):
            _rewrite(file, old, new)
            with capture_logs() as logs:
                assert running.reload()
            assert [line["text"] for line in logs if line["event"] == "at_next_start"] == later


@in_loop
async def test_a_file_that_was_mended_is_applied_and_its_error_forgotten(file: Path) -> None:
    async with running_with(file) as running, Client(running, "bob") as bob:
        tokens = file.with_name("keys.toml")
        tokens.write_text("")
        assert not running.reload()
        write_users(tokens, {"ann": KEYS["ann"]}, SECRET)
        assert running.reload()
        assert (await bob.attach()).code == 6  # not authorised: this revocation was meant
        state = msgspec.json.decode((await ask(running, "/state"))[1])
        assert state["reloads"] == {"applied": 1, "failed": 1, "error": ""}


@in_loop
async def test_the_last_user_is_revoked_on_purpose_by_the_command(file: Path) -> None:
    async with running_with(file) as running, Client(running, "ann") as ann, Client(running, "bob") as bob:
        for user in ("bob", "ann"):
            assert main(["user", "revoke", user, "-c", str(file)]) == 0
            assert running.reload()
        assert [(await client.attach()).code for client in (ann, bob)] == [6, 6]
        assert "tokens = [\n]" in file.with_name("keys.toml").read_text()


def test_the_command_treats_a_user_without_tokens_as_unknown(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for user in ("bob", "ann"):
        main(["user", "revoke", user, "-c", str(file)])
    assert main(["user", "list", "-c", str(file)]) == 0
    assert capsys.readouterr().out == ""
    assert main(["user", "rotate", "ann", "-c", str(file)]) == 2
    assert main(["check", "-c", str(file)]) == 2
    assert "no user has a token" in capsys.readouterr().err
    assert main(["user", "add", "ann", "-c", str(file)]) == 0
    assert list(reload_config(str(file)).tokens.users) == ["ann"]


def _replace(path: Path) -> None:
    """Replace the file by another one with the same content, which the watch takes for whole at its next check."""
    new = path.with_suffix(".new")
    new.write_bytes(path.read_bytes())
    new.replace(path)


@in_loop
async def test_after_an_unexpected_error_the_relay_goes_on_and_its_watch_can_reload(file: Path) -> None:
    outcomes: list[object] = [OSError("disk"), ValueError("odd"), settings(admin=LOOPBACK)]

    def load() -> RelayConfig:
        found = outcomes.pop(0)
        if isinstance(found, RelayConfig):
            return found
        assert isinstance(found, Exception)
        raise found

    running = relay(settings(admin=LOOPBACK), load=load, files=[file])
    async with running, Client(running) as client:
        for failed, applied in ((1, 0), (2, 0), (2, 1)):
            _replace(file)
            running.reloading.watch.look()
            assert (running.relay.reloads.failed, running.relay.reloads.applied) == (failed, applied)
        assert isinstance(await client.attach(), Attached)


@in_loop
async def test_an_error_that_stays_is_logged_again_only_when_another_reload_is_asked_for(file: Path) -> None:
    loads: list[None] = []

    def fail() -> RelayConfig:
        loads.append(None)
        raise ConfigError("x")

    async with relay(load=fail, files=[file]) as running:
        with capture_logs() as logs:
            _replace(file)
            while len(loads) < 3:  # the watch tries again by itself
                running.reloading.watch.look()
            assert len(logs) == 1
            running.reload()  # SIGHUP
            assert len(logs) == 2
            _replace(file)
            running.reloading.watch.look()
        assert [line["event"] for line in logs] == ["not_reloaded"] * 3


def _name_other_tokens(file: Path) -> None:
    file.write_text(RULES.replace("keys", "other"))


@in_loop
async def test_another_tokens_file_is_watched_from_then_on(file: Path) -> None:
    config = load_config(str(file))
    other = file.with_name("other.toml")
    write_users(other, {"bob": KEYS["bob"]})
    running = relay(config, load=partial(reload_config, str(file)), files=[file, file.with_name("keys.toml")])
    async with running:
        _name_other_tokens(file)
        for _ in range(4):
            running.reloading.watch.look()
        assert running.relay.tokens.users == ["bob"]
        write_users(other, {"ann": KEYS["ann"]})
        running.reloading.watch.look()
        assert running.relay.tokens.users == ["ann"]


def test_owners_of_files_may_still_write_them_by_hand(file: Path) -> None:
    """A file that `tunnel-relay user` did not write needs no line at its end."""
    tokens = file.with_name("keys.toml")
    (key,) = KEYS["ann"]
    tokens.write_text(f'[ann]\ntokens = [{{ id = "{key.id}", sha256 = "{key.sha256}" }}]\n')
    assert reload_config(str(file)).tokens.users == ["ann"]
