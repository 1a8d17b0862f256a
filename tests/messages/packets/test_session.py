"""Sessions over real streams: large packets, small ones, pings, and ends in the middle of a packet."""

import asyncio
import hashlib
import os
from pathlib import Path

import pytest

from tests.messages.streams import session_pair, stream_pair
from tests.support.loops import in_loop, until
from tests.support.relays import MemoryTestRelay
from tunnel.messages.errors import ChannelClosedError, MalformedFrameError, MessageCancelledError
from tunnel.messages.packets.assembler import AssemblerConfig, Packet
from tunnel.messages.packets.bodies import SpooledBody
from tunnel.messages.packets.parts import Part, encode_part_header
from tunnel.messages.packets.session import MessageSession, Priority

LARGE = os.urandom(1 << 20) * 5


class Inbox:
    """A handler that keeps the packets that it receives."""

    def __init__(self) -> None:
        self.packets: list[tuple[int, bytes]] = []
        self.kinds: list[type] = []
        self.came = asyncio.Event()

    def __call__(self, packet: Packet) -> None:
        self.packets.append((packet.type, packet.data))
        self.kinds.append(type(packet.body))
        self.came.set()


@in_loop
async def test_packets_of_any_size_arrive(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(LARGE)
    async with session_pair() as (near, far):
        inbox = Inbox()
        far.register(7, inbox)
        near.start()
        far.start()
        sizes = [0, 1, 1024, 1 << 20, (1 << 20) + 1]
        for size in sizes:
            await near.send(Packet(LARGE[:size], 7, type=20))
        with (tmp_path / "file").open("rb") as file:
            await near.send(Packet(file, 7, type=21))
        await near.ping()
        assert [len(body) for _, body in inbox.packets] == [*sizes, len(LARGE)]
        assert all(LARGE.startswith(body) for _, body in inbox.packets)
        assert inbox.packets[-1] == (21, LARGE)
        assert inbox.kinds == [bytes] * 4 + [SpooledBody] * 2


@in_loop
async def test_packets_and_answers_travel_in_both_directions_at_once() -> None:
    async with session_pair(part_bytes=1024) as (near, far):
        answers = Inbox()
        near.register(1, answers)

        async def answer(packet: Packet) -> None:
            digest = hashlib.sha256(packet.data).digest()
            await far.send(Packet(digest, packet.response_target))

        far.register(2, answer)
        near.start()
        far.start()
        bodies = [LARGE[: 300_000 + number] for number in range(5)]
        await asyncio.gather(*(near.send(Packet(body, 2, response_target=1, executor_id=9)) for body in bodies))
        while len(answers.packets) < 5:
            answers.came.clear()
            await answers.came.wait()
        assert sorted(body for _, body in answers.packets) == sorted(hashlib.sha256(body).digest() for body in bodies)


@in_loop
async def test_pings_and_small_packets_overtake_a_large_packet() -> None:
    async with session_pair() as (near, far):
        inbox = Inbox()
        far.register(1, inbox)
        near.start()
        far.start()
        large = asyncio.ensure_future(near.send(Packet(LARGE * 8, 1)))
        pings = 0
        while not large.done():
            await near.ping()
            await near.send(Packet(b"small", 1), Priority.HIGH)
            pings += 1
        await large
        await near.ping()
        # The first small packet arrived before the end of the large one.
        assert pings > 1
        assert len(inbox.packets[0][1]) == 5
        assert len(inbox.packets) == pings + 1


@in_loop
async def test_refused_packets_do_not_end_the_session(tmp_path: Path) -> None:
    config = AssemblerConfig(body_bytes_max=2_000_000, directory=tmp_path)
    async with session_pair(config=config) as (near, far):
        inbox = Inbox()
        far.register(1, inbox)
        near.start()
        far.start()
        with pytest.raises(MessageCancelledError, match="over 2000000 bytes"):
            await near.send(Packet(LARGE, 1))
        with pytest.raises(MessageCancelledError, match="no handler for target 99"):
            await near.send(Packet(LARGE[:300_000], 99))
        await near.send(Packet(b"small, to nobody", 99))
        await near.send(Packet(LARGE[:1_900_000], 1))
        assert inbox.packets == [(16, LARGE[:1_900_000])]
        assert near.window.in_flight_bytes == 0
        assert os.listdir(tmp_path) == []


@in_loop
async def test_cancelling_stops_a_packet_in_the_middle() -> None:
    async with session_pair() as (near, far):
        inbox = Inbox()
        far.register(1, inbox)
        near.start()
        far.start()
        sending = asyncio.ensure_future(near.send(Packet(LARGE * 20, 1)))
        while not near.window.received_bytes:
            await near.ping()
        sending.cancel()
        with pytest.raises(asyncio.CancelledError):
            await sending
        unsent = asyncio.ensure_future(near.send(Packet(LARGE, 1)))
        await asyncio.sleep(0)
        unsent.cancel()
        await near.send(Packet(b"next", 1))
        await near.ping()
        assert inbox.packets == [(16, b"next")]


@in_loop
async def test_a_file_that_is_read_in_small_pieces_arrives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A read may return less than was asked for: a body that would fit into one part then takes several."""
    pread = os.pread
    monkeypatch.setattr(os, "pread", lambda file, size, offset: pread(file, min(size, 100), offset))
    (tmp_path / "file").write_bytes(LARGE[:250])
    async with session_pair() as (near, far):
        inbox = Inbox()
        far.register(1, inbox)
        near.start()
        far.start()
        with (tmp_path / "file").open("rb") as file:
            await near.send(Packet(file, 1))
        await near.ping()
        assert inbox.packets == [(16, LARGE[:250])]
        assert not near.window.in_flight_bytes


@in_loop
async def test_a_file_that_shrinks_fails_only_its_packet(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(LARGE)
    async with session_pair() as (near, far):
        far.register(1, Inbox())
        near.start()
        with path.open("r+b") as file:
            sending = asyncio.ensure_future(near.send(Packet(file, 1)))
            await asyncio.sleep(0)
            file.truncate(1000)
            far.start()
            with pytest.raises(Exception, match="shorter"):
                await sending
        assert await near.ping() >= 0


@in_loop
async def test_a_peer_that_vanishes_leaves_no_files_or_tasks(tmp_path: Path) -> None:
    async with session_pair(config=AssemblerConfig(directory=tmp_path)) as (near, far):
        far.register(1, Inbox())
        near.start()
        far.start()
        sending = asyncio.ensure_future(near.send(Packet(LARGE * 20, 1)))
        while near.window.received_bytes < 3 << 20:
            await near.ping()
        near._writer.transport.abort()
        await far.wait_closed()
        await near.wait_closed()
        with pytest.raises(ChannelClosedError):
            await sending
        assert far.error is not None
        assert os.listdir(tmp_path) == []
        for call in (near.ping(), near.send(Packet(b"", 1))):
            with pytest.raises(ChannelClosedError):
                await call
        assert near.is_closed


@in_loop
async def test_a_clean_end_of_the_session_is_no_error() -> None:
    async with session_pair() as (near, far):
        far.start()
        async with near:
            ping = asyncio.ensure_future(near.ping())
            await ping
        await far.wait_closed()
        assert far.error is None


@in_loop
async def test_pings_fail_with_the_session() -> None:
    async with session_pair() as (near, _):
        near.start()
        ping = asyncio.ensure_future(near.ping())
        await asyncio.sleep(0)
        await near.close()
        with pytest.raises(ChannelClosedError):
            await ping


@in_loop
async def test_slow_handlers_hold_the_sender_back() -> None:
    async with session_pair(pending_bytes_max=1 << 20) as (near, far):
        gate = asyncio.Event()

        async def wait(packet: Packet) -> None:
            await gate.wait()

        far.register(1, wait)
        near.start()
        far.start()
        taken: list[int] = []

        async def send() -> None:
            for number in range(20):  # one after the other: the ends of many may come in one read
                await near.send(Packet(LARGE[: 1 << 20], 1))
                taken.append(number)

        sending = asyncio.create_task(send())
        await until(lambda: bool(taken))
        for _ in range(1000):
            await asyncio.sleep(0)
        # One packet is more than handlers may hold here; the next one cannot be taken before it is handled.
        assert len(taken) == 1
        assert 1 << 20 < far.dispatcher.pending_bytes < 2 << 20
        gate.set()
        await sending


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"GET / HTTP/1.1\r\n" + bytes(50), "not a part"),
        (encode_part_header(Part(3, 0, 0, 0, 0, -1, True), 8) + (5).to_bytes(8, "big"), "not sent"),
        (encode_part_header(Part(16, 0, 1, 0, 0, 4, False), 0), "without the parts before it"),
    ],
)
def test_a_peer_that_breaks_the_framing_is_disconnected(data: bytes, match: str) -> None:
    @in_loop
    async def main() -> None:
        async with stream_pair() as (near, far), MessageSession(*near) as session:
            # A type of a later version, and a refusal and an answer for an unknown packet: all harmless.
            for kind in (9, 5, 2):
                far[1].write(encode_part_header(Part(kind, 0, 0, 0, 77, -1, True), 0))
            far[1].write(data)
            await session.wait_closed()
            assert isinstance(session.error, MalformedFrameError)
            assert match in str(session.error)

    main()


@in_loop
async def test_wrong_arguments_are_refused() -> None:
    async with stream_pair() as (near, _):
        with pytest.raises(ValueError, match="part_bytes"):
            MessageSession(*near, part_bytes=0)
        session = MessageSession(*near)
        with pytest.raises(ValueError, match="type of a packet"):
            await session.send(Packet(b"", type=3))
        await session.close()


@in_loop
async def test_sessions_work_over_a_tunnel() -> None:
    async with MemoryTestRelay() as relay, relay.attach("bob") as bob, relay.attach("ann") as ann:
        got: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            session = MessageSession(reader, writer)
            session.register(1, lambda packet: got.set_result(packet.data))
            async with session:
                await session.wait_closed()

        await bob.start_server(serve, "messages")
        reader, writer = await ann.open_connection("messages", timeout=30)
        async with MessageSession(reader, writer) as session:
            sending = asyncio.ensure_future(session.send(Packet(LARGE, 1)))
            await session.ping()
            await sending
            assert await got == LARGE
