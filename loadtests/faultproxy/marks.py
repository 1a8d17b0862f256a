"""Trace records of delays, refusals, truncations and bit flips."""

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
    """Record that a message is about to be delayed."""
    recorder.fault(FaultKind.DELAY, _DELAYED[side], number, latency_us=delay_us, text=side)


def mark_limit(recorder: Recorder, size_bytes: int, number: int) -> None:
    """Record that a request of at least `size_bytes` is about to be refused as too large."""
    recorder.fault(FaultKind.LIMIT, TraceFault.ANSWER_REPLACED, number, size_bytes=size_bytes, status=TOO_LARGE)


def mark_truncation(recorder: Recorder, mangler: Mangler, number: int, side: Side) -> None:
    """Record that the proxy cut the body after the bytes that it has passed on so far."""
    how = f"{side} {'cut' if mangler.breaks else 'short'}"
    recorder.fault(FaultKind.TRUNCATE, _TRUNCATED[side], number, size_bytes=mangler.passed_bytes, text=how)


def mark_flips(recorder: Recorder, mangler: Mangler, number: int, side: Side) -> None:
    """Record the bit flips of a body, once. Call this after each piece: any of them can be the first with a flip."""
    if mangler.take_first_flip():
        recorder.fault(FaultKind.FLIP, _CORRUPTED[side], number, count=mangler.planned_bits, text=side)
