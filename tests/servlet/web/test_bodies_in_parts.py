"""Large bodies are handled in parts, so that the packets of one user leave turns to others. Counted and not timed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from tests.servlet.rig import Client, attach_body, exchange_body, relay, until
from tests.servlet.support import connect
from tests.servlet.web.rig import TurnCounter
from tests.support.loops import in_loop
from tests.turns.fake_meter import FakeMeter
from tunnel.wire import Answer, Attached, Frame, Packet, PacketType, Status, StatusCode, decode_envelope
from tunnel_servlet.switch.forwarding import Forwarder
from tunnel_servlet.switch.responses import RelayResponse
from tunnel_servlet.web.host import SwitchHost
from tunnel_servlet.web.running import RunningRelay

SEED = 7
MANY = 1024  # the most that a body may hold
PACKET_US = 100  # what a CONNECT costs on the clock of these tests


class Costs:
    """Lets each packet of `bob` cost time on a clock of its own, and notes in which turn it was handled."""

    def __init__(self, running: RunningRelay, monkeypatch: pytest.MonkeyPatch) -> None:
        self.counter = TurnCounter()
        self.handled: list[int] = []  # the ids of the packets
        meter = running.relay.host.turns.meter = FakeMeter()
        receive = Forwarder.receive

        def note(forwarder: Forwarder, attachment: object, frames: Sequence[Frame], *more: object) -> None:
            if len(frames) > 1:
                self.counter.note(len(frames))
                self.handled += [frame.source for frame in frames]
                meter.seconds += len(frames) * PACKET_US / 1e6
            receive(forwarder, attachment, frames, *more)  # type: ignore[arg-type]

        monkeypatch.setattr(Forwarder, "receive", note)


def body(epoch: int, *sent: Packet, **more: Any) -> bytes:
    return exchange_body(epoch, 1, *sent, seed=SEED, **more)


def packets(first: int = 1) -> list[Packet]:
    return [connect(number) for number in range(first, first + MANY)]


@asynccontextmanager
async def begun_body(
    monkeypatch: pytest.MonkeyPatch,
) -> AsyncIterator[tuple[SwitchHost, Costs, asyncio.Future[RelayResponse]]]:
    """A relay that has handled the first part of a body of `bob`, whose answer is awaited."""
    async with relay() as running, Client(running, "bob") as client:
        await client.attach(SEED)
        costs = Costs(running, monkeypatch)
        host = running.relay.host
        begun = asyncio.ensure_future(host.exchange("bob", body(host.switch.epoch, *packets()), is_exit=False))
        await until(lambda: costs.handled)
        yield host, costs, begun


@pytest.mark.interpreted
@in_loop
async def test_two_users_a_body_of_many_packets_leaves_turns_to_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay() as running, Client(running, "bob") as attacker, Client(running) as victim:
        await attacker.attach(SEED)
        costs = Costs(running, monkeypatch)
        flood = attacker.post_soon(body(attacker.epoch, *packets()))
        await until(lambda: costs.handled)
        assert isinstance(await victim.attach(), Attached)
        assert len(costs.handled) < MANY  # the victim did not wait for all of them
        assert isinstance((await flood).message, Answer)
        assert costs.handled == list(range(1, MANY + 1))
        assert costs.counter.stop() <= 2 * 16


@pytest.mark.interpreted
@in_loop
async def test_the_next_body_of_a_user_waits_until_the_one_before_is_handled(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay() as running, Client(running, "bob") as first, Client(running, "bob") as second:
        await first.attach(SEED)
        costs = Costs(running, monkeypatch)
        one, two = body(first.epoch, *packets()), body(first.epoch, *packets(5000), lane=1)
        replies = await asyncio.gather(first.post(one), second.post(two))
        assert all(isinstance(reply.message, Answer) for reply in replies)
        assert len(costs.handled) == 2 * MANY
        assert sorted(costs.handled) in (costs.handled, costs.handled[MANY:] + costs.handled[:MANY])


@pytest.mark.interpreted
@in_loop
async def test_a_body_that_does_not_wait_for_its_turn_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relay() as running, Client(running, "bob") as client:
        await client.attach(SEED)
        Costs(running, monkeypatch)
        host, epoch = running.relay.host, running.relay.host.switch.epoch
        begun = asyncio.ensure_future(host.exchange("bob", body(epoch, *packets()), is_exit=False))
        await asyncio.sleep(0)
        early = await host.exchange("bob", body(epoch, lane=1), is_exit=False)
        message = decode_envelope(early.body[0])
        assert (early.status, isinstance(message, Status) and message.code) == (503, StatusCode.BUSY)
        assert (await begun).status == 200
        assert (await host.exchange("bob", body(epoch, lane=1), is_exit=False)).status == 200


@pytest.mark.parametrize("pull", [False, True])
@pytest.mark.interpreted
@in_loop
async def test_a_body_is_handled_to_its_end_although_its_connection_has_gone(
    pull: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relay() as running, Client(running, "bob") as client:
        await client.attach(SEED)
        costs = Costs(running, monkeypatch)
        host = running.relay.host
        ignored = [Packet(PacketType.NOOP, number, 0, 0, b"") for number in range(1, MANY + 1)]
        sent = body(host.switch.epoch, *ignored, pull=pull)
        begun = asyncio.ensure_future(host.exchange("bob", sent, is_exit=False))
        await until(lambda: costs.handled)
        begun.cancel()
        await until(lambda: len(costs.handled) == MANY)
        await until(lambda: not host.turns.has_to_wait("bob"))
        assert (host.waiting, host.switch.stats().parked_pulls, host.turns.inputs) == (0, 0, 1)


@pytest.mark.interpreted
@in_loop
async def test_a_body_whose_endpoint_attaches_again_is_answered_as_stale(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun_body(monkeypatch) as (host, costs, begun):
        host.switch.request(1 << 40, "bob", attach_body(SEED, generation=2), 0)
        message = decode_envelope((await begun).body[0])
        assert isinstance(message, Status)
        assert message.code == StatusCode.STALE
        assert len(costs.handled) == MANY


@pytest.mark.interpreted
@in_loop
async def test_a_body_whose_endpoint_has_gone_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun_body(monkeypatch) as (host, costs, begun):
        operator = host.switch.operator
        for _ in operator.kick_attachments(operator.attachments_of("bob"), lambda: 0):
            pass
        message = decode_envelope((await begun).body[0])
        assert isinstance(message, Status)
        assert message.code == StatusCode.UNKNOWN
        assert len(costs.handled) < MANY


@pytest.mark.parametrize(("is_later", "is_awaited"), [(False, True), (True, True), (True, False)])
@pytest.mark.interpreted
@in_loop
async def test_a_body_whose_rest_fails_keeps_no_other_body_of_the_user_away(
    is_later: bool, is_awaited: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relay() as running, Client(running, "bob") as client:
        await client.attach(SEED)
        costs = Costs(running, monkeypatch)
        host = running.relay.host
        reported: list[object] = []
        asyncio.get_running_loop().set_exception_handler(lambda loop, found: reported.append(found["exception"]))
        error = RuntimeError("a defect")

        def fail(rest: object, now: int) -> bool:
            raise error

        if not is_later:
            monkeypatch.setattr(host.switch, "go_on", fail)
        begun = asyncio.ensure_future(host.exchange("bob", body(host.switch.epoch, *packets()), is_exit=False))
        await until(lambda: costs.handled)
        monkeypatch.setattr(host.switch, "go_on", fail)
        if not is_awaited:
            begun.cancel()
        (found,) = await asyncio.gather(begun, return_exceptions=True)
        assert isinstance(found, RuntimeError if is_awaited else asyncio.CancelledError)
        await until(lambda: not host.turns.has_to_wait("bob"))
        assert reported == ([] if is_awaited else [error])
        assert (host.waiting, host.turns.inputs) == (0, 1)
        assert (await host.exchange("bob", body(host.switch.epoch, lane=1), is_exit=False)).status == 200


@pytest.mark.interpreted
@in_loop
async def test_a_relay_that_closes_handles_no_more_of_a_body(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its witness has been told of all open connections, and would never hear of the end of others."""
    async with begun_body(monkeypatch) as (host, costs, begun):
        before = len(costs.handled)
        host.close()
        assert (await begun).status == 503
        assert len(costs.handled) == before < MANY
        assert (host.waiting, host._rests) == (0, set())


@pytest.mark.interpreted
@in_loop
async def test_a_delivery_that_fails_in_the_middle_of_a_body_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    async with begun_body(monkeypatch) as (host, costs, begun):

        def fail() -> None:
            raise RuntimeError("a defect")

        with monkeypatch.context() as failing:
            failing.setattr(host, "pump", fail)
            (found,) = await asyncio.gather(begun, return_exceptions=True)
        assert isinstance(found, RuntimeError)
        assert len(costs.handled) < MANY
        await until(lambda: not host.turns.has_to_wait("bob"))
        assert (await host.exchange("bob", body(host.switch.epoch, lane=1), is_exit=False)).status == 200
