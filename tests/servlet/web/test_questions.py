"""`Attachment.check` against a real relay: what it says of the rules, and what an older relay makes of it (3.14)."""

import asyncio
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.servlet.rig import TOKENS, relay, settings, until
from tests.support.loops import in_loop
from tunnel import DeniedError, attach
from tunnel.wire import Buffer, Connect, asked_about, decode_connect
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule

ANN = Grant(connect=(parse_rule("127.0.0.0/8:*"), parse_rule("udp/db:53")), services=("reports",))
RULES = GrantTable({"ann": ANN})
ALLOWED: list[tuple[str, int | None]] = [("127.0.0.1", 9), ("udp:db", 53), ("reports", None)]
DENIED: list[tuple[str, int | None, str]] = [
    ("db", 5432, 'connect = ["127.0.0.0/8:*", "udp/db:53", "db:5432"]'),
    ("db", 53, '"db:53"]'),
    ("udp:127.0.0.1", 53, '"udp/127.0.0.1:53"]'),
    ("db.internal", None, 'services = ["reports", "db.internal"]'),
]


def asking(running: Any, **options: Any) -> Any:
    return attach(f"http://{running.addresses[0]}", token=TOKENS["ann"], proxy=None, **options)


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_the_rules_answer_before_anything_is_opened(carrier: str) -> None:
    with capture_logs() as logs:
        async with relay(settings(grants=RULES, exit="inline")) as running, asking(running, carrier=carrier) as ann:
            await asyncio.gather(*(ann.check(*target) for target in ALLOWED))
            for host, port, line in DENIED:
                with pytest.raises(DeniedError, match="no rule allows") as denied:
                    await ann.check(host, port)
                assert line in str(denied.value)
            assert running.relay.host.switch.stats().routes == 0
    events = [line["event"] for line in logs]
    assert "connect" not in events  # the operator's log tells questions and connections apart
    assert "dialled" not in events
    assert [line["allowed"] for line in logs if line["event"] == "asked"] == [True] * 3 + [False] * 4


@in_loop
async def test_a_name_without_a_port_gets_the_advice_to_write_one() -> None:
    async with relay(settings(grants=RULES)) as running, asking(running) as ann:
        with pytest.raises(DeniedError, match=r"did you mean db\.internal:PORT\?"):
            await ann.check("db.internal")


@pytest.mark.interpreted
@in_loop
async def test_an_older_relay_opens_nothing_and_the_check_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    def older(data: Buffer) -> Connect | None:
        found = decode_connect(data)
        return None if found is not None and asked_about(found.target) is not None else found

    monkeypatch.setattr("tunnel_servlet.switch.routes.openings.decode_connect", older)
    async with relay(settings(grants=RULES, exit="inline")) as running, asking(running) as ann:
        for target in [*ALLOWED, ("db", 5432)]:
            await ann.check(*target)
        assert running.relay.host.switch.stats().routes == 0


@in_loop
async def test_without_an_answer_the_check_passes() -> None:
    async with relay(settings(grants=RULES), packet_filter=lambda frame: False) as running, asking(running) as ann:
        await ann.check("db", 5432, timeout=0.01)
        await until(lambda: not ann.stats().connections)
