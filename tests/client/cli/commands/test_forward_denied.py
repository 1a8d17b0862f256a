"""`tunnel forward` to targets that no rule allows: it says so at the start, and names the lines that are missing."""

from collections.abc import Iterator

import pytest

from tests.client.rig import Rig
from tests.servlet.rig import settings
from tunnel_client.cli.main import main
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule


@pytest.fixture(scope="module")
def strict() -> Iterator[Rig]:
    """A relay that allows ann this machine, and no services."""
    allowed = Grant(connect=(parse_rule("127.0.0.0/8:*"),))
    with Rig(settings(exit="inline", grants=GrantTable({"ann": allowed}))) as found:
        yield found


@pytest.mark.parametrize(
    ("forwards", "parts"),
    [
        (
            ["0:db.internal:5432"],
            ["no rule allows db.internal:5432", 'connect = ["127.0.0.0/8:*", "db.internal:5432"]'],
        ),
        (
            ["0:db.internal"],
            ["no rule allows the service db.internal", 'services = ["db.internal"]', "did you mean db.internal:PORT?"],
        ),
        (["udp/0:ns.internal:53"], ["no rule allows udp/ns.internal:53", '"udp/ns.internal:53"]']),
        (["0:db.internal:1", "0:db.internal:2"], ["no rule allows db.internal:1;", "no rule allows db.internal:2;"]),
    ],
)
def test_if_all_are_denied_the_command_ends_before_it_listens(
    forwards: list[str],
    parts: list[str],
    strict: Rig,
    home: object,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in strict.environment().items():
        monkeypatch.setenv(name, value)
    assert main(["forward", *forwards]) == 5
    found = capsys.readouterr()
    text = " ".join((found.out + found.err).split()).replace('\\"', '"')
    for part in parts:
        assert part in text
    assert "listening" not in text
