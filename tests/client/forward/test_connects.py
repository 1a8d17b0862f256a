"""Connects in flight are bounded, and no source takes more of them than are free."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.servlet.rig import until
from tests.support.loops import in_loop
from tunnel import Attachment
from tunnel_client.cli.commands.forward import Forwarding
from tunnel_client.cli.commands.proxy import Proxying
from tunnel_client.forward.connects import Connects
from tunnel_client.forward.listening import bind
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address


class Scene:
    """Sources that connect. `log` holds the source of each connect that has begun; `answer` ends one of them."""

    def __init__(self, connects_max: int) -> None:
        self.connects = Connects(connects_max)
        self.log: list[str] = []
        self._answers: list[tuple[str, asyncio.Future[None]]] = []

    def connect(self, source: str) -> asyncio.Task[None]:
        return asyncio.ensure_future(self._connect(source))

    async def _connect(self, source: str) -> None:
        async with self.connects.turn(source):
            self.log.append(source)
            answer: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._answers.append((source, answer))
            await answer

    async def connects_end_and(self, other: asyncio.Task[None]) -> None:
        """End the only connect, and cancel the task whose turn comes then before it has noticed."""
        self._answers.pop()[1].set_result(None)
        while len(self.connects._waiting["eve"]) == 2:  # noqa: ASYNC110 - counts the turns of the event loop
            await asyncio.sleep(0)
        other.cancel()
        await asyncio.sleep(0.001)

    async def answer(self, source: str, error: Exception | None = None) -> None:
        found = next(each for each in self._answers if each[0] == source and not each[1].done())
        self._answers.remove(found)
        if error is None:
            found[1].set_result(None)
        else:
            found[1].set_exception(error)
        await asyncio.sleep(0.001)


@in_loop
async def test_two_users_the_connects_of_one_leave_room_for_the_other_and_they_take_turns() -> None:
    scene = Scene(8)
    tasks = [scene.connect("eve") for _ in range(100)]
    await asyncio.sleep(0.001)
    assert scene.log == ["eve"] * 4
    tasks += [scene.connect("ann") for _ in range(4)]
    await asyncio.sleep(0.001)
    assert scene.log == ["eve"] * 4 + ["ann"] * 2
    await scene.answer("ann")
    assert scene.log[6:] == ["ann"]  # eve, whose turn it is, has more than are free
    await scene.answer("eve")
    await scene.answer("eve", OSError("refused"))
    assert scene.log[7:] == ["ann", "eve"]  # eve still had as many as were free, and then fewer
    assert scene.connects.count <= 8
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    assert not scene.connects._waiting


@in_loop
async def test_a_connect_that_is_given_up_counts_until_the_exit_has_given_it_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Otherwise a program that connects and gives up, again and again, would fill the relay and the exit."""
    monkeypatch.setattr("tunnel_client.forward.connects._GIVEN_UP_S", 0.05)
    scene = Scene(2)
    for _ in range(100):
        task = scene.connect("eve")
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
    assert scene.log == ["eve"]
    last = scene.connect("eve")
    while len(scene.log) < 2:  # noqa: ASYNC110 - the turn comes by a timer
        await asyncio.sleep(0.01)
    await scene.answer("eve")
    await last
    assert scene.connects.count == 0


@in_loop
async def test_one_that_gives_up_just_when_its_turn_comes_passes_the_turn_on() -> None:
    scene = Scene(1)
    first, second, third = (scene.connect("eve") for _ in range(3))
    await asyncio.sleep(0.001)
    await scene.connects_end_and(second)
    await first
    assert second.cancelled()
    assert scene.log == ["eve", "eve"]
    await scene.answer("eve")
    await third
    assert scene.connects.count == 0


class Silent:
    """An attachment whose targets never answer."""

    def __init__(self) -> None:
        self.asked = 0

    async def create_connection(self, *arguments: Any, **others: Any) -> None:
        self.asked += 1
        await asyncio.get_running_loop().create_future()


@pytest.mark.parametrize("kind", ["forward", "proxy"])
def test_local_programs_that_connect_and_leave_again_and_again_use_no_more_of_the_relay(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(f"tunnel_client.cli.commands.{kind}.Connects", lambda *_: Connects(8))

    @in_loop
    async def scenario() -> None:
        silent, sock = Silent(), bind(Address("127.0.0.1", 0))
        attachment = cast(Attachment, silent)
        traffic, port = Traffic(attachment), sock.getsockname()[1]
        serving = (
            Forwarding(attachment, Address("db", 5432), sock, traffic)
            if kind == "forward"
            else Proxying(attachment, sock, traffic)
        )
        async with serving:
            for _ in range(3):
                near = [await asyncio.open_connection("127.0.0.1", port) for _ in range(20)]
                for _, writer in near:
                    writer.write(b"CONNECT db:5432 HTTP/1.1\r\n\r\n")
                await until(lambda: silent.asked == 4)
                for _, writer in near:
                    writer.transport.abort()
                await asyncio.sleep(0.1)
            assert silent.asked == 4
            _, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.0.2", 0))
            writer.write(b"CONNECT db:5432 HTTP/1.1\r\n\r\n")
            await until(lambda: silent.asked == 5)
            writer.close()

    scenario()
