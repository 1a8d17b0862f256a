"""Counting and tracing what was done to whom."""

import dataclasses

from loadtests.faultproxy.faults import FaultKind
from tunnel.clock import now_us
from tunnel.traces.record import TraceEvent, TraceFault, TraceSink, TraceSource

__all__ = ["Counts", "Recorder"]


@dataclasses.dataclass(slots=True)
class Counts:
    """What a proxy has seen and done since its start."""

    connections: int = 0  # from clients
    exchanges: int = 0  # requests, CONNECT and Upgrade too
    tunnels: int = 0  # of CONNECT and Upgrade
    request_bytes: int = 0  # of bodies and tunnels, as clients sent them
    response_bytes: int = 0  # of bodies and tunnels, as upstream sent them
    upstream_errors: int = 0  # could not be reached, or failed within an exchange
    bad_requests: int = 0  # what was no HTTP
    faults: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(map(str, FaultKind), 0))


class Recorder:
    """Writes one record for each fault, with the time of the monotonic clock, and counts it."""

    def __init__(self, node: str, trace: TraceSink | None) -> None:
        self.counts = Counts()
        self._trace = None if trace is None else TraceSource(trace, node)

    def fault(
        self,
        kind: FaultKind,
        cause: TraceFault,
        exchange: int = 0,
        *,
        size_bytes: int = 0,
        latency_us: int = 0,
        status: int = 0,
        count: int = 0,
        text: str = "",
    ) -> None:
        """A fault was injected. `exchange` is the number of the exchange at this proxy; 0: it concerns none."""
        self.counts.faults[kind] += 1
        if self._trace is not None:
            self._trace.tell(
                TraceEvent.FAULT_INJECTED,
                now_us(),
                cause=cause,
                exchange=exchange,
                size_bytes=size_bytes,
                latency_us=latency_us,
                status=status,
                count=count,
                text=f"{kind} {text}".strip(),
            )

    def healed(self, text: str) -> None:
        """A fault that lasts is over."""
        if self._trace is not None:
            self._trace.tell(TraceEvent.FAULTS_HEALED, now_us(), text=text)
