"""Counts and traces the injected faults."""

import dataclasses

from loadtests.faultproxy.faults import FaultKind
from tunnel.system.clock import now_us
from tunnel.traces.record import TraceEvent, TraceFault, TraceSink, TraceSource

__all__ = ["Counts", "Recorder"]


@dataclasses.dataclass(slots=True)
class Counts:
    """The counters of a proxy since its start."""

    connections: int = 0  # from clients
    exchanges: int = 0  # requests, including those with CONNECT or Upgrade
    tunnels: int = 0  # by CONNECT and Upgrade
    request_bytes: int = 0  # in bodies and tunnels, as clients sent them
    response_bytes: int = 0  # in bodies and tunnels, as upstream sent them
    upstream_errors: int = 0  # connections that failed, at the start or within an exchange
    bad_requests: int = 0  # not valid HTTP, or for no known server
    faults: dict[str, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(map(str, FaultKind), 0))


class Recorder:
    """Counts each fault and writes one record for it, with the time of the monotonic clock."""

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
        """Record an injected fault. `exchange` is the number of the exchange at this proxy; 0 if there is none."""
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
        """Record the end of a fault that lasted for a time."""
        if self._trace is not None:
            self._trace.tell(TraceEvent.FAULTS_HEALED, now_us(), text=text)
