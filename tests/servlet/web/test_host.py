"""The host of the switch: requests from this process, abandoned requests, and closing."""

from __future__ import annotations

import asyncio

from tests.servlet.rig import attach_body, exchange_body, until
from tests.support.loops import in_loop
from tunnel.wire import Attached, StatusCode, attachment_id, decode_envelope
from tunnel_servlet.access.grants import GrantTable
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.web.host import SwitchHost


def make() -> SwitchHost:
    policy = GrantTable().widened([], allows_all=True)
    return SwitchHost(SwitchConfig(), policy.authorise, may_listen=policy.may_listen)


class Answers:
    """Records the answers."""

    def __init__(self) -> None:
        self.all: list[tuple[int, bytes]] = []

    def __call__(self, status: int, body: bytes) -> None:
        self.all.append((status, body))


class Link:
    def __init__(self) -> None:
        self.ended = ""

    def fill(self) -> None:
        raise AssertionError("nothing waits")

    def end(self, text: str) -> None:
        self.ended = text


@in_loop
async def test_requests_from_this_process_are_answered_asynchronously() -> None:
    host, answers = make(), Answers()
    host.post("ann", attach_body(), answers, is_exit=False)
    host.post("ann", attach_body(seed=2), answers, is_exit=True)
    assert answers.all == []
    await until(lambda: len(answers.all) == 2)
    assert isinstance(decode_envelope(answers.all[0][1]), Attached)
    assert (host.switch.stats().attachments, host.switch.stats().exits) == (2, 1)
    host.close()


@in_loop
async def test_a_request_abandoned_at_once_does_not_reach_the_switch() -> None:
    host, answers = make(), Answers()
    host.gone(host.post("ann", attach_body(), answers, is_exit=False))
    host.post("ann", attach_body(seed=2), answers, is_exit=False)
    await until(lambda: answers.all)
    host.gone(77)
    assert (len(answers.all), host.switch.stats().counters.requests, host.waiting) == (1, 1, 0)
    host.close()


@in_loop
async def test_the_switch_forgets_a_cancelled_exchange() -> None:
    host = make()
    await host.exchange("ann", attach_body(), is_exit=False)
    body = exchange_body(host.switch.epoch, 1, pull=True)
    for step in ("before it is answered", "when it is answered"):
        pull = asyncio.ensure_future(host.exchange("ann", body, is_exit=False))
        await until(lambda: host.switch.stats().parked_pulls)
        pull.cancel()
        if step == "when it is answered":
            host.switch.handle_timeout(1 << 62)
            host.pump()
        await asyncio.gather(pull, return_exceptions=True)
        assert pull.cancelled()
        assert (host.waiting, host.switch.stats().parked_pulls) == (0, 0)
        body = exchange_body(host.switch.epoch, 2, pull=True)
    host.close()


@in_loop
async def test_a_closed_host_answers_pending_requests_and_accepts_no_more() -> None:
    host, answers, link = make(), Answers(), Link()
    await host.exchange("ann", attach_body(), is_exit=False)
    identity = attachment_id((1).to_bytes(32, "big"))
    assert host.link_opened(link, "ann", identity, host.switch.epoch, 2) == 0
    assert host.link_opened(link, "ann", identity, host.switch.epoch, 1) != 0
    pull = asyncio.ensure_future(host.exchange("ann", exchange_body(host.switch.epoch, 1, pull=True), is_exit=False))
    await until(lambda: host.switch.stats().parked_pulls)
    host.post("ann", attach_body(), answers, is_exit=False)
    host.close()
    host.close()
    assert (await pull).status == answers.all[0][0] == 503
    assert link.ended == "the relay is shutting down"
    late = await host.exchange("ann", attach_body(), is_exit=False)
    message = decode_envelope(late.body[0])
    assert (late.status, getattr(message, "code", None)) == (503, StatusCode.BUSY)
    assert host.link_opened(link, "ann", identity, host.switch.epoch, 1) == 0
    host.post("ann", attach_body(), answers, is_exit=False)
    host.pump()
    await host.drained()
