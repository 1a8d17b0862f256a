"""Traces the exchanges of a carrier: each request and its outcome."""

from tunnel.traces.record import TraceEvent, TraceLevel, TraceSink, TraceSource, level_of

__all__ = ["ExchangeTracer"]

_Request = tuple[int, int, int, str, int]  # lane, number, repeat, kind, time sent


class ExchangeTracer:
    """Writes trace records of exchanges. Call `on_sent` for each request, then one of the other methods.

    At the level "connection", only repeats, failures, abandoned requests and answers other than 200 are recorded.
    """

    def __init__(self, sink: TraceSink, node: str) -> None:
        self._source = TraceSource(sink, node)
        self._all = level_of(sink) >= TraceLevel.PACKET
        self._open: dict[int, _Request] = {}

    def on_sent(
        self, request_id: int, lane: int, number: int, repeat: int, kind: str, size_bytes: int, now: int
    ) -> None:
        """Record that a request is sent; `kind` is attach, push or pull."""
        self._open[request_id] = request = (lane, number, repeat, kind, now)
        if repeat:
            self._tell(TraceEvent.EXCHANGE_REPEATED, request, now, size_bytes=size_bytes)
        elif self._all:
            self._tell(TraceEvent.EXCHANGE_SENT, request, now, size_bytes=size_bytes)

    def on_answered(self, request_id: int, status: int, size_bytes: int, now: int) -> None:
        """Record that a complete response arrived."""
        request = self._open.pop(request_id, None)
        if request is not None and (self._all or status != 200):
            self._tell(TraceEvent.EXCHANGE_ANSWERED, request, now, status=status, size_bytes=size_bytes)

    def on_failed(self, request_id: int, now: int) -> None:
        """Record that the request failed without a complete response."""
        request = self._open.pop(request_id, None)
        if request is not None:
            self._tell(TraceEvent.EXCHANGE_FAILED, request, now)

    def on_abandoned(self, request_id: int, now: int) -> None:
        """Record that the carrier no longer waits for the answer."""
        request = self._open.pop(request_id, None)
        if request is not None:
            self._tell(TraceEvent.EXCHANGE_ABANDONED, request, now)

    def _tell(self, event: TraceEvent, request: _Request, now: int, *, status: int = 0, size_bytes: int = 0) -> None:
        lane, number, repeat, kind, sent_us = request
        self._source.tell(
            event,
            now,
            lane=lane,
            exchange=number,
            attempt=repeat,
            status=status,
            latency_us=now - sent_us,
            size_bytes=size_bytes,
            text=kind,
        )
