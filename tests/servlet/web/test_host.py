"""The host of the switch: requests from this process, abandoned requests, and closing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.servlet.rig import attach_body, exchange_body, until
from tests.servlet.support import accepted, connect, frames_of, rejected
from tests.support.loops import in_loop
from tunnel.system.clock import now_us
from tunnel.wire import Attached, Packet, PacketType, RejectReason, StatusCode, attachment_id, decode_envelope
from tunnel_servlet.access.grants import EXIT_USER, GrantTable
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.web.host import SwitchHost


def make() -> SwitchHost:
    policy = GrantTable().with_rules([], allows_all=True)
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
    host.on_gone(host.post("ann", attach_body(), answers, is_exit=False))
    host.post("ann", attach_body(seed=2), answers, is_exit=False)
    await until(lambda: answers.all)
    host.on_gone(77)
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


class BusyLink(Link):
    """A link with batches that wait for the turn of their user."""

    def __init__(self) -> None:
        super().__init__()
        self.has_gone_on = ""

    def pause_input(self) -> None:
        pass

    def resume_input(self) -> None:
        self.has_gone_on = f"ended: {bool(self.ended)}"


@in_loop
async def test_a_link_that_waits_for_its_turn_has_ended_when_a_host_that_closes_lets_it_go_on() -> None:
    """What it would handle would come after the witness has been told that all connections have ended."""
    host, link = make(), BusyLink()
    await host.exchange("ann", attach_body(), is_exit=False)
    assert host.link_opened(link, "ann", attachment_id((1).to_bytes(32, "big")), host.switch.epoch, 1)
    host.turns.join("ann", link)
    host.turns.spend("ann", 1_000_000)
    assert host.turns.is_stopped("ann")
    host.close()
    assert link.has_gone_on == "ended: True"


class Member:
    """An endpoint in the relay's process, or elsewhere, with its link. It records the packets that it gets."""

    def __init__(self, host: SwitchHost) -> None:
        self.host = host
        self.link = 0
        self.got: list[int] = []
        self.ended = ""

    async def join(self, user: str, seed: int, *, is_exit: bool = False) -> None:
        answers = Answers()
        self.host.post(user, attach_body(seed), answers, is_exit=is_exit)
        await until(lambda: answers.all)
        identity = attachment_id(seed.to_bytes(32, "big"))
        self.link = self.host.join_link(self, user, identity, self.host.switch.epoch, 1)

    def fill(self) -> None:
        while frames := self.host.take_packets(self.link, 1 << 20):
            self.got += [frame.type for frame in frames]

    def end(self, text: str) -> None:
        self.ended = text

    def input(self, *packets: Packet) -> None:
        """Let packets come as those of a connection do."""
        self.host.switch.link_packets(self.link, frames_of(*packets), now_us())
        self.host.pump()

    def post(self, *packets: Packet, then: Callable[[], None] = lambda: None) -> None:
        self.host.post_packets(self.link, frames_of(*packets), then)


async def members(host: SwitchHost) -> tuple[Member, Member, Member]:
    """Attach ann, bob and the inline exit."""
    ann, bob, exit_ = Member(host), Member(host), Member(host)
    await ann.join("ann", 1)
    await bob.join("bob", 2)
    await exit_.join(EXIT_USER, 3, is_exit=True)
    return ann, bob, exit_


_CONNECT, _ACCEPTED, _REJECTED = map(int, (PacketType.CONNECT, PacketType.ACCEPTED, PacketType.REJECTED))


@in_loop
async def test_two_users_each_pays_for_what_the_inline_exit_does_with_its_packets() -> None:
    host = make()
    ann, bob, exit_ = await members(host)
    ann.input(connect(11))
    assert exit_.got == [_CONNECT]  # within the input, whose processor time ann is charged
    bob.input(connect(12))
    assert exit_.got == [_CONNECT, _CONNECT]
    exit_.post(accepted(11, 22), rejected(12, RejectReason.BUSY))
    assert ann.got == bob.got == []  # what the exit sends is not part of the input that made it do so
    await asyncio.sleep(0)
    assert _ACCEPTED in ann.got
    assert _REJECTED in bob.got
    assert not host.switch.stats().bytes_held  # everything has arrived
    host.switch.check_invariants()
    host.close()


@in_loop
async def test_two_users_an_endpoint_that_always_sends_leaves_each_second_turn_to_the_others() -> None:
    host = make()
    _, _, exit_ = await members(host)
    handled: list[int] = []

    def again() -> None:
        handled.append(len(handled))
        exit_.post(then=again)

    exit_.post(then=again)
    exit_.post()
    for turns in range(1, 4):
        await asyncio.sleep(0)
        assert len(handled) == turns
    host.close()


@in_loop
async def test_the_packets_of_a_link_that_has_ended_in_this_process_are_given_up() -> None:
    host = make()
    ann, _, exit_ = await members(host)
    ann.input(connect(11))
    exit_.post(accepted(11, 22), then=lambda: exit_.got.append(-1))
    host.link_closed(exit_.link)
    host.link_closed(exit_.link)
    await asyncio.sleep(0)
    assert exit_.got == [_CONNECT]
    assert ann.got == []
    assert host.take_packets(exit_.link, 1 << 20) == []
    host.close()
    assert (ann.ended, exit_.ended) == ("the relay is shutting down", "")


@in_loop
async def test_links_in_this_process_count_as_memory_and_not_as_links() -> None:
    host = make()
    ann, _, exit_ = await members(host)
    ann.input(connect(11))
    exit_.post(accepted(11, 22))
    await asyncio.sleep(0)
    stats = host.switch.stats()
    assert stats.links == stats.counters.links_opened == 2  # those of ann and bob
    assert (stats.counters.in_process.packets_sent, stats.counters.in_process.packets_received) == (1, 1)
    assert stats.counters.by_links.packets_received == 1
    host.link_closed(exit_.link)
    assert host.switch.stats().links == 2
    host.link_closed(ann.link)
    assert host.switch.stats().links == 1
    host.close()


class Reports:
    """The exceptions that the event loop is told of."""

    def __init__(self) -> None:
        self.all: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, what: self.all.append(what["exception"]))


def fails(error: Exception, then: Callable[..., None] | None = None) -> Callable[..., None]:
    """Return a function that raises the error once; afterwards it calls `then`."""
    errors = [error]

    def once(*given: Any) -> None:
        if errors:
            raise errors.pop()
        assert then is not None, "it was called again"
        then(*given)

    return once


@pytest.mark.interpreted
@in_loop
async def test_two_users_a_link_that_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ann's input lets the exit's link fail: ann's request, bob's link and the clock go on, and the exit may return."""
    host, reports, error = make(), Reports(), RuntimeError("a test")
    ann, bob, exit_ = await members(host)
    monkeypatch.setattr(exit_, "fill", fails(error))
    due_us: list[int] = []
    monkeypatch.setattr(host._timer, "due_by", lambda at_us, now: due_us.append(at_us))
    ann.input(connect(11))
    assert (reports.all, exit_.got, exit_.link in host.links) == ([error], [], False)
    assert exit_.ended
    assert due_us
    monkeypatch.undo()
    identity = attachment_id((3).to_bytes(32, "big"))
    exit_.link = host.join_link(exit_, EXIT_USER, identity, host.switch.epoch, 1)
    exit_.fill()
    bob.input(connect(12))
    assert exit_.got == [_CONNECT, _CONNECT]  # what has not arrived waits for the next link
    exit_.post(accepted(11, 22), accepted(12, 23))
    await asyncio.sleep(0)
    assert _ACCEPTED in ann.got
    assert _ACCEPTED in bob.got
    host.switch.check_invariants()
    host.close()


@pytest.mark.interpreted
@pytest.mark.parametrize("failing", ["the switch", "the endpoint", "the end of the link"])
@in_loop
async def test_two_users_what_fails_in_this_process_leaves_what_others_have_posted(
    monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    host, reports, answers, handled = make(), Reports(), Answers(), Answers()
    errors = [RuntimeError("a test"), RuntimeError("another test")]
    ann, bob, exit_ = await members(host)
    ann.input(connect(11))
    fails_here = fails(errors[0], host.switch.link_packets)
    if failing != "the endpoint":
        monkeypatch.setattr(host.switch, "link_packets", fails_here)
    if failing == "the end of the link":
        monkeypatch.setattr(exit_, "end", fails(errors[1]))
    exit_.post(accepted(11, 22), then=fails(errors[0]) if failing == "the endpoint" else lambda: handled(0, b""))
    exit_.post(accepted(11, 22), then=lambda: handled(0, b""))
    bob.post(connect(12), then=lambda: handled(1, b""))
    host.post("cyd", attach_body(seed=4), answers, is_exit=False)
    await until(lambda: answers.all)
    assert reports.all == errors[: 2 if failing == "the end of the link" else 1]
    assert handled.all == [(1, b"")]
    assert exit_.link not in host.links
    assert bool(exit_.ended) is (failing != "the end of the link")
    assert (_ACCEPTED in ann.got) is (failing == "the endpoint")
    host.switch.check_invariants()
    host.close()


@in_loop
async def test_two_users_who_fails_at_its_answer_fails_alone() -> None:
    host, reports, answers, error = make(), Reports(), Answers(), RuntimeError("a test")
    host.post("ann", attach_body(), fails(error), is_exit=False)
    host.post("bob", attach_body(seed=2), answers, is_exit=False)
    await until(lambda: answers.all)
    assert (reports.all, host.waiting) == ([error], 0)
    host.close()


@pytest.mark.interpreted
@in_loop
async def test_two_users_a_streamed_answer_that_fails_ends_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    host, reports, error = make(), Reports(), RuntimeError("a test")
    gone: list[int] = []
    host.switch.streams_ready[7] = None
    monkeypatch.setattr(host.switch, "on_gone", lambda handle, now: gone.append(handle))
    host.streams[7] = cast("Any", SimpleNamespace(wake=fails(error), finish=fails(error)))
    answers = Answers()
    host.post("bob", attach_body(seed=2), answers, is_exit=False)
    await until(lambda: answers.all)
    assert (reports.all, gone, host.streams) == ([error], [7], {})
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
    await host.wait_until_drained()
