"""Faults of single frames in one direction of a websocket (RFC 6455, 5.2). All other bytes pass as they come."""

import asyncio
import dataclasses
from random import Random

from loadtests.faultproxy.context import Context
from loadtests.faultproxy.faults import FaultKind, Side
from loadtests.faultproxy.options import FrameBuffer, FrameClose, FrameCut, FrameFaults, FrameFlip, FrameStall
from loadtests.faultproxy.stream import Stream
from tunnel.traces.record import TraceFault

__all__ = ["CloseError", "CutError", "FrameParser", "Frames", "close_frame"]

_HELD_BYTES_MAX = 1 << 20  # if more than this is held back, it leaves before its time
# If the length in a header's second byte is 126 or 127: the number of bytes after it, which hold the real length.
_LENGTH_BYTES = {126: 2, 127: 8}
_MASK_BYTES = 4

_CUT = {Side.REQUEST: TraceFault.REQUEST_TRUNCATED, Side.RESPONSE: TraceFault.RESPONSE_TRUNCATED}
_FLIPPED = {Side.REQUEST: TraceFault.REQUEST_CORRUPTED, Side.RESPONSE: TraceFault.RESPONSE_CORRUPTED}
_DELAYED = {Side.REQUEST: TraceFault.REQUEST_DELAYED, Side.RESPONSE: TraceFault.RESPONSE_DELAYED}
_LOST = {Side.REQUEST: TraceFault.REQUEST_LOST, Side.RESPONSE: TraceFault.RESPONSE_LOST}


class CutError(Exception):
    """The plan cuts the connections here."""


def close_frame(code: int, *, masked: bool) -> bytes:
    """Return a close frame. One from a client is masked, here with zeros."""
    return bytes([0x88, 0x80 | 2, 0, 0, 0, 0] if masked else [0x88, 2]) + code.to_bytes(2, "big")


class CloseError(CutError):
    """A close frame has left. Both connections end after each party has had time to end its own direction."""


class FrameParser:
    """Finds where frames begin and end. `left_bytes` of the present frame are still to come; 0 between two frames."""

    def __init__(self) -> None:
        self.left_bytes = 0
        self._head = bytearray()

    def take_head(self, data: bytes) -> bytes:
        """Take bytes of a header from the beginning of `data`; call it between two frames. Return the rest."""
        while self._missing():
            count = self._missing()
            if not data:
                return b""
            self._head += data[:count]
            data = data[count:]
        return data

    def begin(self) -> bytes:
        """Return the header if it is complete, and begin its frame; else return no bytes."""
        if self._missing():
            return b""
        head = bytes(self._head)
        self._head.clear()
        more = _LENGTH_BYTES.get(head[1] & 0x7F, 0)
        self.left_bytes = int.from_bytes(head[2 : 2 + more], "big") if more else head[1] & 0x7F
        return head

    def rest(self) -> bytes:
        """Return the part of a header that has come."""
        return bytes(self._head)

    def _missing(self) -> int:
        if len(self._head) < 2:
            return 2 - len(self._head)
        masked = _MASK_BYTES if self._head[1] & 0x80 else 0
        return 2 + _LENGTH_BYTES.get(self._head[1] & 0x7F, 0) + masked - len(self._head)


@dataclasses.dataclass(slots=True)
class _Frame:
    """The present frame, and the fault that happens at its byte `place`."""

    kind: FaultKind | None = None
    place: int = 0
    bit: int = 0
    passed: int = 0  # bytes of the frame so far


class Frames:
    """Passes the bytes of one direction on, with the faults that the seed draws for its frames."""

    def __init__(self, context: Context, faults: FrameFaults, destination: Stream, number: int, side: Side) -> None:
        self._context = context
        self._faults = faults
        self._destination = destination
        self._number = number
        self._side = side
        self._parser = FrameParser()
        self._frame = _Frame()
        self._is_deaf = False  # set by a stall for ever, after which the rest is discarded
        self._held = bytearray()
        self._timer: asyncio.TimerHandle | None = None
        self._randoms = {
            kind: Random(f"{context.options.seed}/{kind}/{number}/{side}")
            for kind in FaultKind
            if kind.startswith("frame_")
        }

    async def feed(self, piece: bytes) -> None:
        """Pass the next bytes on. Raise CutError if both connections must end here."""
        while piece and not self._is_deaf:
            if self._parser.left_bytes:
                count = min(len(piece), self._parser.left_bytes)
                self._parser.left_bytes -= count
                await self._pass(piece[:count])
                piece = piece[count:]
            else:
                piece = self._parser.take_head(piece)
                if head := self._parser.begin():
                    self._frame = self._draw(len(head) + self._parser.left_bytes)
                    if self._frame.kind is FaultKind.FRAME_CLOSE:
                        self._close()
                    await self._pass(head)

    def finish(self) -> None:
        """Pass what is held back, at the end of this direction."""
        if not self._is_deaf:
            self._emit(self._parser.rest())
        self.release()

    def stop(self) -> None:
        """Never pass on what is held back, because the connections end."""
        if self._timer is not None:
            self._timer.cancel()

    def release(self) -> None:
        """Pass on what is held back."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        held, self._held = self._held, bytearray()
        self._destination.write(held)

    # the faults of one frame

    def _draw(self, size: int) -> _Frame:
        faults = self._faults
        kinds: dict[FaultKind, FrameClose | FrameCut | FrameStall | FrameFlip | FrameBuffer] = {
            FaultKind.FRAME_CLOSE: faults.close,
            FaultKind.FRAME_CUT: faults.cut,
            FaultKind.FRAME_STALL: faults.stall,
            FaultKind.FRAME_FLIP: faults.flip,
            FaultKind.FRAME_BUFFER: faults.buffer,
        }
        found = _Frame()
        for kind, fault in kinds.items():
            if fault.probability <= 0 or fault.side not in ("", self._side):
                continue
            random = self._randoms[kind]
            hits, place, bit = random.random() < fault.probability, random.random(), random.randrange(8)
            if hits and found.kind is None:
                # A cut or a stall comes after the first byte of the frame and before its last; a flip may hit any byte.
                first = 0 if kind is FaultKind.FRAME_FLIP else 1
                found = _Frame(kind, first + int(place * (size - first)), bit)
        return found

    async def _pass(self, piece: bytes) -> None:
        """Pass bytes of the present frame on."""
        frame = self._frame
        start, frame.passed = frame.passed, frame.passed + len(piece)
        place = frame.place - start  # within the piece
        match frame.kind:
            case FaultKind.FRAME_CUT if place < len(piece):
                self._emit(piece[:place])
                self.release()
                self._record(frame, _CUT[self._side], size_bytes=frame.place)
                raise CutError
            case FaultKind.FRAME_STALL if place < len(piece):
                self._emit(piece[:place])
                await self._stall(frame)
                piece = piece[place:]
            case FaultKind.FRAME_FLIP if 0 <= place < len(piece):
                flipped = bytearray(piece)
                flipped[place] ^= 1 << frame.bit
                piece = bytes(flipped)
                self._record(frame, _FLIPPED[self._side], count=1)
            case FaultKind.FRAME_BUFFER if start == 0:
                self._hold_back(frame)
        if not self._is_deaf:
            self._emit(piece)
            await self._destination.drain()

    def _close(self) -> None:
        code = self._faults.close.code
        self._emit(close_frame(code, masked=self._side is Side.REQUEST))
        self.release()
        self._record(self._frame, TraceFault.ANSWER_REPLACED, status=code)
        raise CloseError

    async def _stall(self, frame: _Frame) -> None:
        lasts_us = self._faults.stall.lasts_us
        self.release()
        self._record(frame, _DELAYED[self._side] if lasts_us else _LOST[self._side], latency_us=lasts_us)
        frame.kind = None
        if lasts_us:
            await asyncio.sleep(lasts_us / 1e6)
        else:
            self._is_deaf = True

    def _hold_back(self, frame: _Frame) -> None:
        if self._timer is None:
            lasts_us = self._faults.buffer.lasts_us
            self._timer = asyncio.get_running_loop().call_later(lasts_us / 1e6, self.release)
            self._record(frame, _DELAYED[self._side], latency_us=lasts_us)

    def _emit(self, data: bytes) -> None:
        if self._timer is None:
            self._destination.write(data)
            return
        self._held += data
        if len(self._held) > _HELD_BYTES_MAX:
            self.release()

    def _record(self, frame: _Frame, cause: TraceFault, **details: int) -> None:
        assert frame.kind is not None
        recorder = self._context.recorder
        recorder.fault(frame.kind, cause, self._number, text=self._side, **details)
