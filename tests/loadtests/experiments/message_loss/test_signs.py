"""Each of the three signs ends phase 1 by itself, whatever the other two say."""

import asyncio
from pathlib import Path

import pytest

from loadtests.experiments.message_loss.records import Recorder
from loadtests.experiments.message_loss.roads import RawRoad
from loadtests.experiments.message_loss.sender import Sender
from loadtests.experiments.message_loss.signs import Sign, Signs
from loadtests.experiments.message_loss.statistics import PhaseStatistics
from tests.support.loops import in_loop

SIGNS = [Sign.STATUS, Sign.DISCONNECTED, Sign.READ_CLOSED]


class Line:
    """A connection with a status that can be asked for, and signs that can be given one by one."""

    def __init__(self) -> None:
        self.is_connected = True
        self.signs = Signs(lambda: self.is_connected)

    def give(self, sign: Sign) -> None:
        match sign:
            case Sign.STATUS:
                self.is_connected = False
            case Sign.DISCONNECTED:
                self.signs.connection.disconnected("gone")
            case Sign.READ_CLOSED:
                self.signs.error.read_closed("gone")


@pytest.mark.parametrize("sign", SIGNS)
@in_loop
async def test_each_sign_alone_ends_phase_1(sign: Sign, tmp_path: Path) -> None:
    line = Line()
    assert not line.signs.is_broken()
    with Recorder(tmp_path, "sender") as record:
        sender = Sender(RawRoad(1), PhaseStatistics(), record, 10)
        asked = 0

        def is_broken() -> bool:
            nonlocal asked
            asked += 1
            if asked == 3:
                line.give(sign)
            return line.signs.is_broken() or asked > 10  # a sign that does not work must not hold up the test

        await sender.publish_at(1000, is_broken)
    assert asked == 3
    assert list(line.signs.seen) == [sign]


class Cutting(asyncio.Protocol):
    """A server that answers as a broker does, then ends the connection."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        transport.write(b"INFO {}\r\nPONG\r\n")
        asyncio.get_running_loop().call_soon(transport.abort)


@in_loop
async def test_a_socket_that_ends_gives_all_three_signs_each_from_its_own_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    server = await loop.create_server(Cutting, "127.0.0.1", 0)
    road = RawRoad(server.sockets[0].getsockname()[1])
    status: list[bool] = []
    disconnected, read_closed = road.signs.connection.disconnected, road.signs.error.read_closed

    def when_disconnected(reason: str) -> None:
        status.append(road.is_connected)
        disconnected(reason)

    def when_read_closed(text: str) -> None:
        status.append(road.is_connected)
        read_closed(text)

    monkeypatch.setattr(road.signs.connection, "disconnected", when_disconnected)
    monkeypatch.setattr(road.signs.error, "read_closed", when_read_closed)
    async with server:
        with Recorder(tmp_path, "sender") as record:
            sender = Sender(road, PhaseStatistics(), record, 10)
            await sender.start()
            while len(road.signs.seen) < 2:  # noqa: ASYNC110
                await asyncio.sleep(0)
            server.close()
            await sender.close()
    # The reader reports the break while the client still counts as connected; the client reports it after that.
    assert status[:2] == [True, False]
    assert not road.is_connected
    assert road.signs.is_broken()
    assert set(road.signs.seen) == set(Sign)
