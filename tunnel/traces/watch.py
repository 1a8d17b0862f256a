"""Traces the state of a driver: its relay, its carrier, the lag of its event loop and samples of its sockets."""

import asyncio
import socket
from collections.abc import Callable, Iterable

from tunnel.system.clock import now_us
from tunnel.traces.record import TraceCause, TraceEvent, TraceSink, TraceSource

__all__ = ["DriverWatch", "LoopWatch", "tcp_info"]

SAMPLE_S = 0.1
SOCKETS_EVERY = 10  # in samples of the loop
LAG_MIN_US = 5_000  # a smaller lag may come from the resolution of timers
_TCP_INFO_BYTES = 208
_IP_FAMILIES = (socket.AF_INET, socket.AF_INET6)


class LoopWatch:
    """Samples the event loop ten times a second, and records when it is late. Call `start` and `close` in the loop."""

    def __init__(self, sink: TraceSink, node: str) -> None:
        self._source = TraceSource(sink, node)
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Start sampling."""
        self._arm()

    def close(self) -> None:
        """Stop sampling."""
        if self._timer is not None:
            self._timer.cancel()

    def on_sampled(self, now: int) -> None:
        """Do nothing. It is called with each sample of the event loop, so that a subclass can take further samples."""

    def _arm(self) -> None:
        loop = asyncio.get_running_loop()
        due_s = loop.time() + SAMPLE_S
        self._timer = loop.call_at(due_s, self._sample, due_s)

    def _sample(self, due_s: float) -> None:
        lag_us = round((asyncio.get_running_loop().time() - due_s) * 1e6)
        now = now_us()
        if lag_us >= LAG_MIN_US:
            self._source.tell(TraceEvent.LOOP_LAG, now, latency_us=lag_us)
        self.on_sampled(now)
        self._arm()


class DriverWatch(LoopWatch):
    """Samples the event loop, and the sockets once a second; records the driver's changes of state."""

    def __init__(self, sink: TraceSink, node: str, sockets: Callable[[], Iterable[socket.socket]]) -> None:
        super().__init__(sink, node)
        self._sockets = sockets
        self._samples = 0

    def on_attached(self, relay: str, *, fresh: bool, now: int) -> None:
        """Record that the relay knows this endpoint; `count` is 1 if the relay did not know it before (`fresh`)."""
        self._source.tell(TraceEvent.ATTACHED, now, text=relay, count=int(fresh))

    def on_detached(self, why: str, now: int) -> None:
        """Record that the relay no longer knows this endpoint, cannot be reached, or has refused it."""
        self._source.tell(TraceEvent.DETACHED, now, text=why)

    def on_moved(self, connection: int, peer: int, relays: tuple[str, str], cause: TraceCause, now: int) -> None:
        """Record that a connection has come here from another relay. `relays`: the one before, and the present one."""
        text = " -> ".join(relays)
        self._source.tell(TraceEvent.CONNECTION_MOVED, now, connection=connection, peer=peer, cause=cause, text=text)

    def carrier_changed(self, carrier: str, lanes: int, now: int) -> None:
        """Record that the carrier or its number of lanes changed."""
        self._source.tell(TraceEvent.CARRIER_CHANGED, now, carrier=carrier, count=lanes)

    def on_sampled(self, now: int) -> None:
        """Sample the sockets with every tenth sample of the loop."""
        if self._samples % SOCKETS_EVERY == 0:
            for each in self._sockets():
                self._sample_socket(each, now)
        self._samples += 1

    def _sample_socket(self, sock: socket.socket, now: int) -> None:
        info = tcp_info(sock)
        if info is not None:
            rto_us, srtt_us, retransmits, number = info
            self._source.tell(
                TraceEvent.SOCKET_SAMPLED, now, rto_us=rto_us, srtt_us=srtt_us, count=retransmits, serial=number
            )


def tcp_info(sock: socket.socket) -> tuple[int, int, int, int] | None:
    """Return a socket's RTO and SRTT in microseconds, its number of retransmitted segments, and its descriptor.

    Return None if the system does not provide them. The offsets are those of Linux (struct tcp_info in
    include/uapi/linux/tcp.h).
    """
    try:
        if sock.family not in _IP_FAMILIES or not hasattr(socket, "TCP_INFO"):
            return None
        data = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES)
    except OSError:
        return None
    if len(data) < 104:
        return None

    def field(offset: int) -> int:
        return int.from_bytes(data[offset : offset + 4], "little")

    return field(8), field(68), field(100), sock.fileno()
