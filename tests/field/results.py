"""What the field measured, and the judgement of it: whole, refused, known not to be whole, or a failure. No I/O."""

from collections.abc import Iterator, Sequence
from enum import Enum

import msgspec

from tests.field.rows import ROWS, Row

__all__ = ["PARTS", "Bare", "Doctor", "Outcome", "Result", "complaints", "judge", "known_reason", "mended"]

PARTS = ("attach", "up", "down", "echo", "idle", "kill", "doctor")
"""The parts of a measurement, in their order."""

_WORKS = ("attach", "up", "down", "echo")  # without these, the doctor must not say that the tunnel works
_CRASHED = (-1, 1)  # exit codes of a doctor that did not end, or ended with an internal error


class Outcome(Enum):
    """The judgement of one result."""

    WHOLE = "whole"
    REFUSED = "refused"  # as the row expects
    KNOWN = "known"
    FAILED = "FAILED"


class Bare(msgspec.Struct, frozen=True):
    """The same transfers through a bare TCP forwarder, at about the same time."""

    up_bps: float
    down_bps: float
    echo_ms: float


class Doctor(msgspec.Struct, frozen=True):
    """The verdict of `tunnel doctor` about the path."""

    code: int
    summary: str
    notes: list[str] = []  # steps with a note
    problems: list[str] = []  # steps with a problem


class Result(msgspec.Struct):
    """One row with one carrier. A figure is None if it was not measured; `broken` then says why, by part."""

    row: str
    carrier: str  # as asked for
    used: str = ""  # the carriers in use, in their order
    up_bps: float | None = None
    down_bps: float | None = None
    echo_ms: float | None = None
    idle_ms: float | None = None  # the first echo after the idle time
    kill_s: float | None = None  # the longest silence after the relay was killed
    bare: Bare | None = None
    broken: dict[str, str] = {}
    code: int | None = None  # exit code of a client that did not attach
    doctor: Doctor | None = None

    @property
    def works(self) -> bool:
        """Whether a user could work: attached, and bytes moved both ways."""
        return not any(part in self.broken for part in _WORKS)


def complaints(row: Row, result: Result) -> Iterator[tuple[str, str]]:
    """Yield each part that is not as the row promises, with the reason. Known faults are among them."""
    refused = row.refused and result.code == row.refused
    for part in PARTS:
        if part in result.broken and not (part == "attach" and refused):
            yield part, result.broken[part]
    if row.refused and "attach" not in result.broken:
        yield "attach", "the client attached to a path that must be refused"
    if result.doctor is not None:
        yield from _doctor_complaints(result, result.doctor)


def _doctor_complaints(result: Result, doctor: Doctor) -> Iterator[tuple[str, str]]:
    if doctor.code in _CRASHED:
        yield "doctor", f"crashed: {doctor.summary}"
    elif (doctor.code == 0) != result.works:
        works = "works" if result.works else "does not work"
        yield "doctor", f"says {doctor.summary!r} (exit code {doctor.code}), but the tunnel {works}"


def known_reason(row: Row, carrier: str, part: str) -> str:
    """The reason for which this part is known not to be whole; empty if it must be whole."""
    return row.known.get(f"{carrier}:{part}") or row.known.get(part, "")


def judge(row: Row, result: Result) -> Outcome:
    """Judge a result by what its row promises."""
    found = list(complaints(row, result))
    if any(not known_reason(row, result.carrier, part) for part, _ in found):
        return Outcome.FAILED
    if found:
        return Outcome.KNOWN
    return Outcome.REFUSED if row.refused else Outcome.WHOLE


def mended(results: Sequence[Result]) -> Iterator[str]:
    """Yield each entry of `Row.known` that can be removed: its part was whole in every result that could show it."""
    for row in ROWS:
        measured = [result for result in results if result.row == row.name]
        for key in row.known:
            carrier, _, part = key.rpartition(":")
            able = [result for result in measured if not carrier or result.carrier == carrier]
            if part == "doctor":
                able = [result for result in able if result.doctor is not None]
            broken = [result for result in able if part in dict(complaints(row, result))]
            if able and not broken:
                yield f"{row.name}: {key}"
