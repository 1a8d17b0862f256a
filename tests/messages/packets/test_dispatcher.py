"""Handlers: which of them gets which packet, in which order, and which bodies are kept meanwhile."""

import asyncio
from typing import Any

import pytest

from tests.support.loops import in_loop
from tunnel.messages.packets.assembler import Packet
from tunnel.messages.packets.bodies import SpooledBody
from tunnel.messages.packets.dispatcher import Dispatcher


@in_loop
async def test_each_target_has_its_handler() -> None:
    dispatcher = Dispatcher()
    heard: list[tuple[str, bytes]] = []
    dispatcher.register(1, lambda packet: heard.append(("one", packet.data)))
    dispatcher.register(2, lambda packet: heard.append(("two", packet.data)))
    with pytest.raises(ValueError, match="target 2"):
        dispatcher.register(2, lambda packet: None)
    assert dispatcher.dispatch(Packet(b"a", 1))
    assert dispatcher.dispatch(Packet(b"b", 2))
    dispatcher.unregister(2)
    body = SpooledBody()
    assert not dispatcher.dispatch(Packet(body, 2))
    assert body.file.closed
    assert heard == [("one", b"a"), ("two", b"b")]
    await dispatcher.close()


@in_loop
async def test_one_executor_keeps_the_order_and_several_do_not_wait() -> None:
    dispatcher = Dispatcher()
    gates = {name: asyncio.Event() for name in (b"a", b"b", b"c")}
    heard: list[bytes] = []
    first, done = asyncio.Event(), asyncio.Event()

    async def handle(packet: Packet) -> None:
        await gates[packet.data].wait()
        heard.append(packet.data)
        first.set()

    dispatcher.register(1, handle)

    def handle_now(packet: Packet) -> None:
        heard.append(packet.data)
        done.set()

    dispatcher.register(2, handle_now)
    dispatcher.dispatch(Packet(b"a", 1, executor_id=1))
    dispatcher.dispatch(Packet(b"b", 1, executor_id=1))
    dispatcher.dispatch(Packet(b"sync", 2, executor_id=1))  # after those two
    dispatcher.dispatch(Packet(b"c", 1, executor_id=2))
    assert dispatcher.pending_bytes > 0
    gates[b"b"].set()
    gates[b"c"].set()
    await first.wait()
    room = asyncio.ensure_future(dispatcher.room(0))
    gates[b"a"].set()
    gates[b"b"].set()
    await done.wait()
    await room
    assert heard == [b"c", b"a", b"b", b"sync"]
    assert dispatcher.pending_bytes == 0
    await dispatcher.close()


@in_loop
async def test_bodies_are_closed_when_handlers_return_or_are_cancelled() -> None:
    dispatcher = Dispatcher()
    bodies = [SpooledBody() for _ in range(4)]
    forever = asyncio.Event()

    async def wait(packet: Packet) -> None:
        await forever.wait()

    dispatcher.register(1, lambda packet: None)
    dispatcher.register(2, wait)
    for target, body in zip((1, 2, 2, 2), bodies, strict=True):
        dispatcher.dispatch(Packet(body, target))
    assert [body.file.closed for body in bodies] == [True, False, False, False]
    await asyncio.sleep(0)
    await dispatcher.close()
    assert all(body.file.closed for body in bodies)


@in_loop
async def test_a_handler_that_raises_is_reported_to_the_loop() -> None:
    loop = asyncio.get_running_loop()
    problems: list[dict[str, Any]] = []
    loop.set_exception_handler(lambda _, context: problems.append(context))
    dispatcher = Dispatcher()

    def fail(packet: Packet) -> None:
        raise ValueError("sync")

    async def fail_later(packet: Packet) -> None:
        raise ValueError("async")

    dispatcher.register(1, fail)
    dispatcher.register(2, fail_later)
    assert dispatcher.dispatch(Packet(b"", 1))
    assert dispatcher.dispatch(Packet(b"", 2))
    await dispatcher.room(0)
    await dispatcher.close()
    assert [str(each["exception"]) for each in problems] == ["sync", "async"]
