"""The records of what a mangler has done to a body."""

from loadtests.faultproxy.faults import FaultKind, Side
from loadtests.faultproxy.mangle import Mangler
from loadtests.faultproxy.recorder import Recorder
from tunnel.traces.record import TraceFault

__all__ = ["mark_delay", "mark_flips", "mark_limit", "mark_truncation"]

TOO_LARGE = 413

_DELAYED = {Side.REQUEST: TraceFault.REQUEST_DELAYED, Side.RESPONSE: TraceFault.RESPONSE_DELAYED}
_TRUNCATED = {Side.REQUEST: TraceFault.REQUEST_TRUNCATED, Side.RESPONSE: TraceFault.RESPONSE_TRUNCATED}
_CORRUPTED = {Side.REQUEST: TraceFault.REQUEST_CORRUPTED, Side.RESPONSE: TraceFault.RESPONSE_CORRUPTED}


def mark_delay(recorder: Recorder, delay_us: int, number: int, side: Side) -> None:
    """A message is going to wait."""
    recorder.fault(FaultKind.DELAY, _DELAYED[side], number, latency_us=delay_us, text=side)


def mark_limit(recorder: Recorder, size_bytes: int, number: int) -> None:
    """A request is too large, at least by so much, and is going to be refused."""
    recorder.fault(FaultKind.LIMIT, TraceFault.ANSWER_REPLACED, number, size_bytes=size_bytes, status=TOO_LARGE)


def mark_truncation(recorder: Recorder, mangler: Mangler, number: int, side: Side) -> None:
    """The body was cut here."""
    how = f"{side} {'cut' if mangler.breaks else 'short'}"
    recorder.fault(FaultKind.TRUNCATE, _TRUNCATED[side], number, size_bytes=mangler.passed_bytes, text=how)


def mark_flips(recorder: Recorder, mangler: Mangler, number: int, side: Side) -> None:
    """Bits of the piece that was fed last may have been flipped: one record for the first piece in which some were."""
    if mangler.take_first_flip():
        recorder.fault(FaultKind.FLIP, _CORRUPTED[side], number, count=mangler.planned_bits, text=side)
