"""A table of fault kinds by the states of the connections that faults struck. With many seeds, a hole is a failure."""

from __future__ import annotations

from collections.abc import Iterable

from tests.sim.faults import FaultKind
from tunnel.core import State

__all__ = ["IMPOSSIBLE", "STATES", "Cells", "Table"]

STATES = tuple(state for state in State if state is not State.CLOSED)  # a closed connection cannot be hurt

K, S = FaultKind, State
_READING = (S.OPEN, S.PEER_CLOSED)  # an application reads in these states only
IMPOSSIBLE = frozenset(
    (kind, state) for kind in (K.SLOW_READER, K.STOPPED_READER) for state in STATES if state not in _READING
)
"""Cells that cannot occur; 2,000 seeds must strike every other one."""


class Cells:
    """The strikes of one run."""

    def __init__(self) -> None:
        self.counts: dict[tuple[FaultKind, State], int] = {}
        self.kinds: dict[FaultKind, int] = {}

    def strike(self, kind: FaultKind, states: Iterable[State]) -> None:
        """Count one strike. `states`: the state of each connection that it struck."""
        self.kinds[kind] = self.kinds.get(kind, 0) + 1
        for state in states:
            if state is not State.CLOSED:
                key = kind, state
                self.counts[key] = self.counts.get(key, 0) + 1

    def plain(self) -> dict[str, dict[str, int]]:
        """Kind -> state -> count, with names as keys: for other processes and for JSON."""
        rows: dict[str, dict[str, int]] = {kind.name: {"": count} for kind, count in self.kinds.items()}
        for (kind, state), count in self.counts.items():
            rows[kind.name][state.name] = count
        return rows


class Table:
    """The strikes of many runs; for each kind of fault also the bytes and connections of its runs."""

    def __init__(self) -> None:
        self._cells: dict[tuple[str, str], int] = {}
        self._runs: dict[str, int] = {}
        self._bytes: dict[str, int] = {}
        self._connections: dict[str, int] = {}

    def add(self, cells: dict[str, dict[str, int]], moved_bytes: int, connections: int) -> None:
        """Add the counts of one run."""
        for kind, row in cells.items():
            self._runs[kind] = self._runs.get(kind, 0) + 1
            self._bytes[kind] = self._bytes.get(kind, 0) + moved_bytes
            self._connections[kind] = self._connections.get(kind, 0) + connections
            for state, count in row.items():
                self._cells[kind, state] = self._cells.get((kind, state), 0) + count

    def holes(self) -> list[str]:
        """The cells that can occur and were never struck."""
        return [
            f"{kind.value} x {state.value}"
            for kind in FaultKind
            for state in STATES
            if (kind, state) not in IMPOSSIBLE and not self._cells.get((kind.name, state.name))
        ]

    def render(self) -> str:
        """The table as text."""
        heads = [state.name.lower().replace("_", " ") for state in STATES]
        widths = [max(len(head), 7) for head in heads]
        lines = [
            f"{'fault':<22}{'seeds':>7}{'strikes':>10}  "
            + "  ".join(f"{head:>{width}}" for head, width in zip(heads, widths, strict=True))
            + f"{'connections':>14}{'MB moved':>11}"
        ]
        for kind in FaultKind:
            name = kind.name
            row = "  ".join(f"{self._cell(kind, state):>{width}}" for state, width in zip(STATES, widths, strict=True))
            lines.append(
                f"{kind.value:<22}{self._runs.get(name, 0):>7}{self._cells.get((name, ''), 0):>10}  {row}"
                f"{self._connections.get(name, 0):>14}{self._bytes.get(name, 0) / 1e6:>11.1f}"
            )
        lines.append("-: cannot exist   !: can exist and was not struck")
        return "\n".join(lines)

    def as_json(self) -> dict[str, dict[str, int]]:
        """Kind -> state (or seeds, strikes, connections, bytes) -> count."""
        return {
            kind.value: {
                "seeds": self._runs.get(kind.name, 0),
                "strikes": self._cells.get((kind.name, ""), 0),
                "connections": self._connections.get(kind.name, 0),
                "bytes": self._bytes.get(kind.name, 0),
                **{state.value: self._cells.get((kind.name, state.name), 0) for state in STATES},
            }
            for kind in FaultKind
        }

    def _cell(self, kind: FaultKind, state: State) -> str:
        if (kind, state) in IMPOSSIBLE:
            return "-"
        return str(self._cells.get((kind.name, state.name), 0) or "!")
