"""One TCP connection of an application: bytes up at a steady pace, then bytes down, all of them checked."""

import asyncio
import contextlib
import enum
import time

import msgspec

from loadtests.harness.transfer import Flow

__all__ = ["PACE_BYTES_S", "End", "Journey", "Outcome"]

CHUNK_BYTES = 256 * 1024
PACE_BYTES_S = 16 * 1024 * 1024  # slow enough that a fault which comes every half second occurs several times
STAND_S = 10.0  # after this time without a byte the connection counts as standing still
_LOOK_S = 0.1


class End(enum.Enum):
    """How the connection ended, as the application sees it."""

    WHOLE = "whole"
    ENDED = "ends early"  # with an end of stream, so that the data looks complete to the application
    FAILED = "fails"  # with an error
    STOOD = "stalls"
    WRONG = "is wrong"


class Outcome(msgspec.Struct):
    """The result of one journey. `share` is the share of all bytes, both directions, that arrived."""

    end: End
    share: float
    seconds: float

    def __str__(self) -> str:
        if self.end is End.WHOLE:
            return f"whole, {self.seconds:.1f} s"
        return f"{self.end.value} at {self.share:.0%}"


class _EndedEarlyError(ConnectionError):
    """The stream ended before all bytes had arrived."""


class Journey:
    """One checked connection: serve() is the target's side; travel() is the application's side, and runs once."""

    def __init__(self, size_bytes: int) -> None:
        self.up = Flow(size_bytes, 1)
        self.down = Flow(size_bytes, 2)
        self.has_begun = False  # whether the target has been reached

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Read all bytes up, then send the bytes down."""
        self.has_begun = True
        try:
            await _read(self.up, reader)
            await _write(self.down, writer)
            await reader.read()  # until the application has all bytes, and closes
        except OSError:
            pass  # travel() reports the outcome, as the application sees it
        finally:
            await _drop(writer)

    async def travel(self, port: int) -> Outcome:
        """Connect to a port of this machine, and move all bytes; return the outcome."""
        began = time.monotonic()
        end = End.WHOLE
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
        except OSError:
            return Outcome(End.FAILED, 0.0, time.monotonic() - began)
        try:
            await self._move(reader, writer)
        except _EndedEarlyError:
            end = End.ENDED
        except TimeoutError:
            end = End.STOOD
        except OSError:
            end = End.FAILED
        await _drop(writer)
        if end is End.WHOLE and not (self.up.is_right and self.down.is_right):
            end = End.WRONG
        return Outcome(end, self._moved_bytes / (self.up.size_bytes + self.down.size_bytes), time.monotonic() - began)

    @property
    def _moved_bytes(self) -> int:
        return self.up.received_bytes + self.down.received_bytes

    async def _move(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        both = [asyncio.ensure_future(_write(self.up, writer)), asyncio.ensure_future(_read(self.down, reader))]
        moved, moved_at = 0, time.monotonic()
        try:
            while not all(task.done() for task in both):
                done, _ = await asyncio.wait(both, timeout=_LOOK_S, return_when=asyncio.FIRST_EXCEPTION)
                for task in done:
                    task.result()
                if self._moved_bytes != moved:
                    moved, moved_at = self._moved_bytes, time.monotonic()
                elif time.monotonic() - moved_at > STAND_S:
                    raise TimeoutError
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)


async def _drop(writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


async def _write(flow: Flow, writer: asyncio.StreamWriter) -> None:
    for chunk in flow.chunks():
        writer.write(chunk)
        await writer.drain()
        ahead_s = flow.written_bytes / PACE_BYTES_S - (time.monotonic() - flow.began_s)
        if ahead_s > 0:
            await asyncio.sleep(ahead_s)


async def _read(flow: Flow, reader: asyncio.StreamReader) -> None:
    while flow.received_bytes < flow.size_bytes:
        data = await reader.read(CHUNK_BYTES)
        if not data:
            raise _EndedEarlyError
        flow.took(data)
