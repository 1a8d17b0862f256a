"""The results that each application must have seen at the end, given how its stream was meant to end."""

from __future__ import annotations

from tests.sim.streams import Ending
from tests.sim.violation import Violation
from tests.sim.workload import Outcome, Party, Stream
from tunnel.core import LostReason

__all__ = ["judge"]

RESET_BY_CLOSE = (LostReason.PEER_CLOSED, LostReason.RESET, LostReason.UNKNOWN)
"""Errors that a writer may learn of when its peer closes without waiting for the end of stream (5.4)."""


def judge(stream: Stream, touched_by_death: bool) -> None:
    """Raise Violation unless both applications saw the result that they had to see."""
    for party in stream.parties:
        if party.outcome is None:
            raise Violation(f"{party}: has not ended")
    if touched_by_death:
        return  # both sides ended: no more is demanded; bytes and ends were checked on arrival
    JUDGES[stream.spec.ending](stream)


def _finish(stream: Stream) -> None:
    for party in _both(stream):
        _demand_clean(party)
        _demand_all(party)
        if not party.at_end:
            raise Violation(f"{party}: closed without an end of stream")


def _close(stream: Stream) -> None:
    initiator, acceptor = _both(stream)
    _demand_clean(initiator)
    _demand_clean(acceptor)
    _demand_all(acceptor)
    if not acceptor.at_end:
        raise Violation(f"{acceptor}: closed without an end of stream")


def _simultaneous(stream: Stream) -> None:
    """A side that ended cleanly has read everything; a side whose bytes were not acknowledged may see a reset."""
    for party in _both(stream):
        if party.outcome is Outcome.CLEAN:
            _demand_all(party)
        elif party.outcome is not Outcome.LOST or party.reason not in RESET_BY_CLOSE:
            raise Violation(f"{party}: {_end_of(party)}, not a clean end")


def _midway(stream: Stream) -> None:
    for party in stream.parties:
        if party.outcome is Outcome.LOST and party.reason not in RESET_BY_CLOSE:
            raise Violation(f"{party}: {_end_of(party)}")


def _early(stream: Stream) -> None:
    _close(stream)


def _abort(stream: Stream) -> None:
    """The side that did not abort learns of it, unless the stream was over before."""
    aborted = [party for party in stream.parties if party.aborted]
    if not aborted:
        return _finish(stream)
    for party in stream.parties:
        if not party.aborted and party.outcome is Outcome.CLEAN:
            _demand_all(party)
    return None


def _refused(stream: Stream) -> None:
    initiator = stream.initiator
    if initiator is None or initiator.outcome is not Outcome.REFUSED:
        raise Violation(f"{stream}: not refused but {_end_of(initiator) if initiator else 'never opened'}")
    if stream.acceptor is not None:
        raise Violation(f"{stream}: both refused and accepted")


JUDGES = {
    Ending.FINISH: _finish,
    Ending.CLOSE: _close,
    Ending.SIMULTANEOUS: _simultaneous,
    Ending.MIDWAY: _midway,
    Ending.EARLY: _early,
    Ending.ABORT: _abort,
    Ending.REFUSED: _refused,
}


def _both(stream: Stream) -> tuple[Party, Party]:
    if stream.initiator is None or stream.acceptor is None:
        raise Violation(f"{stream}: one of its ends is missing")
    return stream.initiator, stream.acceptor


def _demand_clean(party: Party) -> None:
    if party.outcome is not Outcome.CLEAN:
        raise Violation(f"{party}: {_end_of(party)}, not a clean end")


def _demand_all(party: Party) -> None:
    expected = party.stream.down if party.is_initiator else party.stream.up
    if party.read != len(expected):
        raise Violation(f"{party}: ended after {party.read} of {len(expected)} bytes")


def _end_of(party: Party) -> str:
    outcome = party.outcome.value if party.outcome else "open"
    reason = f" ({party.reason.value})" if party.reason else ""
    return f"{outcome}{reason} {party.text}".strip()
