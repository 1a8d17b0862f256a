"""The processor, the memory and the disk of a broker: a user who takes much waits, and others go on."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.messages.broker.rig import ANN, EVE, brokered, frame, from_address, open_as, produce, until
from tests.support.loops import in_loop
from tests.turns.fake_meter import FakeMeter
from tunnel.messages import BrokerSettings, RemoteCallError, TopicSpec
from tunnel.messages.broker.protocol import LIMIT, METRICS, POSITIONS, PRODUCE
from tunnel.messages.broker.users import Slots
from tunnel.messages.calls.frames import ResponseCode
from tunnel.messages.sets.message import encode_payloads

LARGE = produce(encode_payloads([b"x" * 900_000]))


@in_loop
async def test_two_users_slow_requests_of_one_leave_room_for_large_ones_of_another(tmp_path: Path) -> None:
    async with brokered(tmp_path) as (_, client), from_address(client, ANN) as ann:
        slow = [(await open_as(client, EVE))[1] for _ in range(20)]
        for writer in slow:
            writer.write(LARGE[:-1])
            await writer.drain()
        await asyncio.sleep(0.1)
        await asyncio.gather(*(ann.producer().send("t", b"x" * 900_000) for _ in range(3)))
        for writer in slow:
            writer.transport.abort()


@in_loop
async def test_two_users_take_turns_at_slots() -> None:
    slots, got = Slots(4), list[str]()

    async def take(user: str) -> None:
        await slots.acquire(user)
        got.append(user)

    waiting = [asyncio.ensure_future(take("eve")) for _ in range(6)]
    await asyncio.sleep(0)
    assert got == ["eve"] * 2
    waiting += [asyncio.ensure_future(take("ann")) for _ in range(3)]
    await asyncio.sleep(0)
    assert got == ["eve", "eve", "ann"]
    waiting.append(asyncio.ensure_future(take("bob")))
    await asyncio.sleep(0)
    assert got == ["eve", "eve", "ann", "bob"]
    assert slots.locked()
    waiting[2].cancel()
    await asyncio.sleep(0)
    for user, wanted in (("ann", ["ann"]), ("eve", ["ann"]), ("eve", ["ann", "eve"])):
        slots.release(user)
        await asyncio.sleep(0)
        assert got[4:] == wanted
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)


@in_loop
async def test_a_place_that_comes_to_a_cancelled_connection_is_given_on() -> None:
    slots = Slots(1)
    await slots.acquire("eve")
    waiting = [asyncio.ensure_future(slots.acquire(user)) for user in ("eve", "ann")]
    await asyncio.sleep(0)
    slots.release("eve")
    for each in waiting:
        each.cancel()  # the first has its place already
    await asyncio.gather(*waiting, return_exceptions=True)
    await slots.acquire("bob")


@in_loop
async def test_two_users_one_in_debt_waits_and_another_does_not(tmp_path: Path) -> None:
    async with (
        brokered(tmp_path, topics={"t": TopicSpec()}) as (broker, client),
        from_address(client, EVE) as eve,
        from_address(client, ANN) as ann,
    ):
        await asyncio.gather(eve.metrics(), ann.metrics())
        reader, writer = await open_as(client, EVE)
        turns = broker.users.turns
        turns.meter = FakeMeter()
        turns.spend(f"address {EVE}", 60_000_000)
        asking = asyncio.ensure_future(eve.metrics())
        writer.write(produce(encode_payloads([b"of eve"])))
        writer.write_eof()
        for _ in range(3):  # in less time than the longest wait for a turn, also on a busy machine
            await ann.producer().send("t", b"of ann")
        assert not asking.done()
        assert broker.topics.get("t").partition(0).end_offset == 3
        turns.close()
        await asking
        assert await reader.read() == b""
        assert broker.topics.get("t").partition(0).end_offset == 4
        writer.close()


@in_loop
async def test_two_users_each_pays_for_its_calls_and_its_messages(tmp_path: Path) -> None:
    spent: dict[str, float] = {}
    async with (
        brokered(tmp_path, topics={"t": TopicSpec()}) as (broker, client),
        from_address(client, EVE) as eve,
        from_address(client, ANN) as ann,
    ):
        spend = broker.users.turns.spend

        def note(user: str, spent_us: float) -> None:
            spent[user] = spent.get(user, 0.0) + spent_us
            spend(user, spent_us)

        broker.users.turns.spend = note  # type: ignore[method-assign]
        await ann.metrics()
        await eve.table.call(client.address, PRODUCE, produce(encode_payloads([b""] * 50_000)))
        before = dict(spent)
        _, writer = await open_as(client, EVE)
        writer.write(produce(encode_payloads([b""] * 50_000)))
        await until(lambda: broker.metrics()["messages_stored_total"] == 100_000)
        writer.close()
        assert before[f"address {EVE}"] > before[f"address {ANN}"] > 0
        assert spent[f"address {EVE}"] > 1.5 * before[f"address {EVE}"]
        assert spent[f"address {ANN}"] == before[f"address {ANN}"]


@pytest.mark.parametrize("kind", ["calls", "unknown calls", "produce requests"])
def test_two_users_few_requests_of_one_are_handled_between_two_turns_of_the_loop(kind: str, tmp_path: Path) -> None:
    """However small they are, and however many come at once."""
    each = {
        "calls": frame(METRICS, 1),
        "unknown calls": frame(1, 1),
        "produce requests": produce(encode_payloads([b""])),
    }[kind]

    @in_loop
    async def check() -> None:
        async with brokered(tmp_path, topics={"t": TopicSpec()}) as (broker, client):
            handled, most, before = [0], 0, 0
            channel_handle = _counting(broker, handled)
            reader, writer = await open_as(client, EVE)
            writer.write(each * 2_000)
            reading = asyncio.ensure_future(reader.read(1 << 24))
            while handled[0] < 2_000:
                await asyncio.sleep(0)
                most, before = max(most, handled[0] - before), handled[0]
            assert most <= 32
            channel_handle.undo()
            reading.cancel()
            writer.transport.abort()

    check()


def _counting(broker: object, handled: list[int]) -> pytest.MonkeyPatch:
    """Count the frames and the produce requests that a broker handles."""
    from tunnel.messages.broker.storing import Storing
    from tunnel.messages.calls.calls import CallChannel

    patch = pytest.MonkeyPatch()
    for owner, name in ((CallChannel, "_handle"), (Storing, "store")):
        original = getattr(owner, name)

        def counted(*arguments: object, _original: object = original) -> object:
            handled[0] += 1
            return _original(*arguments)  # type: ignore[operator]

        patch.setattr(owner, name, counted)
    return patch


@in_loop
async def test_two_users_the_requests_of_one_take_half_of_the_memory_on_any_number_of_connections(
    tmp_path: Path,
) -> None:
    settings = BrokerSettings(requests_bytes_max=8 << 20)
    async with brokered(tmp_path, settings=settings, topics={"t": TopicSpec()}) as (broker, client):
        async with from_address(client, ANN) as ann, from_address(client, EVE) as eve:
            held = broker.users.requests
            await asyncio.gather(*(eve.metrics() for _ in range(20)))
            assert held.total == 0
            held.add(f"address {EVE}", 3 << 20)
            with pytest.raises(RemoteCallError) as caught:
                await eve.table.call(client.address, METRICS, bytes(2 << 20))
            assert caught.value.code == ResponseCode.SYSTEM_BUSY
            await ann.table.call(client.address, METRICS, bytes(2 << 20))
            held.add(f"address {EVE}", -(3 << 20))
            await eve.table.call(client.address, METRICS, bytes(2 << 20))
            assert held.total == 0
            waiting = [asyncio.ensure_future(eve.consumer("t").fetch(wait_ms=60_000)) for _ in range(3)]
            await until(lambda: held.of_user[f"address {EVE}"] > 3 * 2048)
            for each in waiting:
                each.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        await until(lambda: held.total == 0)


def test_two_users_messages_in_memory_are_charged_with_their_objects(tmp_path: Path) -> None:
    """A partition of 1 MiB may hold 100,000 empty messages, which take 26 MB more."""

    @in_loop
    async def check() -> None:
        settings = BrokerSettings(memory_topics_bytes_max=20 << 20)
        async with brokered(tmp_path, settings=settings) as (_, client):
            with pytest.raises(RemoteCallError) as caught:
                await client.create_topic("t", TopicSpec(storage="memory", bytes_max=1 << 20))
            assert caught.value.code == LIMIT
            await client.create_topic("t", TopicSpec(storage="memory", bytes_max=1 << 20, messages_max=10_000))
            await client.create_topic("u", TopicSpec(storage="memory", bytes_max=1000))

    check()


@in_loop
async def test_two_users_a_set_for_memory_is_refused_before_it_is_divided(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec(storage="memory")}) as (broker, client):
        for count, is_stored in ((2_000, True), (2_001, False)):
            body = produce(encode_payloads([b""] * count))
            if is_stored:
                await client.table.call(client.address, PRODUCE, body)
                continue
            with pytest.raises(RemoteCallError, match="up to 2000 messages"):
                await client.table.call(client.address, PRODUCE, body)
        assert broker.topics.get("t").partition(0).end_offset == 2_000


@in_loop
async def test_two_users_one_may_not_ask_for_a_backlog_that_takes_long_to_grow(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"o": TopicSpec(storage="memory", messages_max=100_001)}) as (_, client):
        with pytest.raises(RemoteCallError) as caught:
            await client.create_topic("t", TopicSpec(storage="memory", messages_max=100_001))
        assert caught.value.code == LIMIT
        await client.create_topic("t", TopicSpec(storage="memory", messages_max=100_000))


@in_loop
async def test_two_users_lists_of_one_wait_for_each_other_and_not_before_those_of_another(tmp_path: Path) -> None:
    async with brokered(tmp_path, topics={"t": TopicSpec()}) as (broker, client):
        broker.positions._stored = {(f"g{number}", "t", 0): (0, 0) for number in range(5_000)}
        floods = [await open_as(client, EVE) for _ in range(30)]
        for _, writer in floods:
            writer.write(frame(POSITIONS, 1, group=""))
        await until(lambda: broker._shared.listing.locked())
        async with from_address(client, ANN) as ann:
            assert len(await ann.positions()) == 5_000
        answered = sum(bool(reader._buffer) for reader, _ in floods)  # type: ignore[attr-defined]
        assert answered < 10
        for _, writer in floods:
            writer.transport.abort()
