"""Forwards that no rule allows are reported before they listen."""

import pytest
from structlog.testing import capture_logs

from tests.support.loops import in_loop
from tunnel import Attachment, DeniedError
from tunnel_client.forward import permission
from tunnel_client.forward.permission import require_allowed
from tunnel_client.places import parse_forwards


class Rules(Attachment):
    """An attachment whose relay allows these targets."""

    def __init__(self, *allowed: tuple[str, int | None]) -> None:
        self.allowed = allowed
        self.questions: list[tuple[str, int | None]] = []

    async def check(self, host: str, port: int | None = None, *, timeout: float = 2.0) -> str:  # noqa: ASYNC109
        self.questions.append((host, port))
        if (host, port) not in self.allowed:
            raise DeniedError(f"{host}: no rule")
        return ""


async def told(rules: Rules, *texts: str) -> tuple[list[str], str]:
    """Return what is logged about the forwards, and the error."""
    specs = [spec for text in texts for spec in parse_forwards(text)]
    with capture_logs() as logs:
        try:
            await require_allowed(rules, specs)
        except DeniedError as error:
            return [line["forward"] for line in logs], str(error)
    return [line["forward"] for line in logs], ""


@in_loop
async def test_each_forward_that_no_rule_allows_is_named_and_the_others_go_on() -> None:
    rules = Rules(("db", 5432))
    assert await told(rules, "1:db:5432", "2:db:5433", "3:reports") == (
        ["127.0.0.1:2 -> db:5433", "127.0.0.1:3 -> reports"],
        "",
    )


@in_loop
async def test_if_no_forward_is_allowed_the_last_one_is_the_error() -> None:
    assert await told(Rules(), "2:db:5433", "3:reports") == (["127.0.0.1:2 -> db:5433"], "reports: no rule")
    assert await told(Rules(), "3:reports") == ([], "reports: no rule")
    assert await told(Rules(), "3:reports", "4:reports") == ([], "reports: no rule")


@in_loop
async def test_targets_are_asked_about_as_they_are_connected_to() -> None:
    rules = Rules()
    texts = ["udp/5:dns:53", "udp/6:dns", "7:unix:/run/x.sock", "8:srv/_db._tcp.example", "udp/9:srv/_db._udp.example"]
    await told(rules, *texts)
    assert rules.questions == [
        ("udp:dns", 53),
        ("udp/dns", None),
        ("unix:/run/x.sock", 1),
        ("srv:_db._tcp.example", 1),
        ("udp:srv:_db._udp.example", 1),
    ]


@in_loop
async def test_a_large_range_asks_about_its_first_ports_only(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(permission, "_ASKED_MAX", 3)
    rules = Rules()
    forwards, error = await told(rules, "1-5:db:1-5")
    assert (len(rules.questions), len(forwards), error) == (3, 3, "")
