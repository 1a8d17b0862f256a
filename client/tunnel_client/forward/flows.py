"""Flows of datagrams through the tunnel: each between one local sender and one target, on a connection of its own."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable

import structlog

from tunnel import Attachment, TunnelError
from tunnel.streams.datagrams import UDP_PREFIX, DatagramSide
from tunnel.streams.splice import Side, TunnelSide, splice
from tunnel.system.tasks import KeptTasks
from tunnel_client.forward.connects import Connects
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address

__all__ = ["FLOW_IDLE_S", "Flows"]

FLOW_IDLE_S = 60.0  # RFC 4787 requires 120 s of address translators; DNS, the usual traffic, needs only 30 s
FLOWS_MAX = 256
_CONNECT_S = 30.0
_CONNECTS_MAX = 64  # at once: fewer than flows, so that there is always one that a new flow may replace
_DEAD_S = 5.0  # a flow that cannot reach its target lasts this much longer; only a new flow tries again
_log = structlog.get_logger("tunnel")


class _Flow:
    """One flow, and the task that connects it, which ends with the flow."""

    def __init__(self, side: DatagramSide, source: Hashable) -> None:
        self.side = side
        self.source = source
        self.is_connecting = False  # relay and exit would go on with this connect if the flow ended now
        self.task: asyncio.Task[None]


class Flows:
    """Flows by key. A flow begins with its first datagram, and ends when it is idle.

    At the limit, a new flow replaces one of the source with the most flows: the least recently used that is not just
    connecting.
    """

    def __init__(
        self,
        attachment: Attachment,
        traffic: Traffic,
        *,
        flows_max: int = FLOWS_MAX,
        idle_seconds: float = FLOW_IDLE_S,
        connects: Connects | None = None,
    ) -> None:
        self._attachment = attachment
        self._traffic = traffic
        self._flows_max = flows_max
        self._idle_seconds = idle_seconds
        self._connects = connects or Connects(_CONNECTS_MAX)
        self._flows: OrderedDict[Hashable, _Flow] = OrderedDict()
        self._tasks = KeptTasks()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._flows)

    def send(
        self, key: Hashable, target: Address, datagram: bytes, deliver: Callable[[bytes], None], source: Hashable = ""
    ) -> None:
        """Send a datagram to the target, on a new flow if the key has none. Flows of different sources take turns.

        The `deliver` of the first datagram receives the answers, for as long as the flow lasts.
        """
        if self._is_closed:
            return
        flow = self._flows.get(key)
        if flow is None:
            while len(self._flows) >= self._flows_max:
                self._replaced().side.close()
            flow = self._open(key, target, deliver, source)
        self._flows.move_to_end(key)
        flow.side.offer(datagram)

    async def close(self) -> None:
        """End all flows, and take no more datagrams."""
        self._is_closed = True
        for flow in list(self._flows.values()):
            flow.side.close()
        await self._tasks.done()

    def _replaced(self) -> _Flow:
        """Return the flow that a new one replaces."""
        counts = Counter(flow.source for flow in self._flows.values())
        largest = max(counts, key=counts.__getitem__)
        flows = [flow for flow in self._flows.values() if flow.source == largest]
        return next((flow for flow in flows if not flow.is_connecting), flows[0])

    def _open(self, key: Hashable, target: Address, deliver: Callable[[bytes], None], source: Hashable) -> _Flow:
        def ended(side: Side, error: Exception | None) -> None:
            if self._flows.get(key) is flow:
                del self._flows[key]
            flow.task.cancel()

        flow = self._flows[key] = _Flow(DatagramSide(deliver, ended, idle_seconds=self._idle_seconds), source)
        flow.task = asyncio.get_running_loop().create_task(self._connect(flow, target))
        self._tasks.keep(flow.task)
        return flow

    async def _connect(self, flow: _Flow, target: Address) -> None:
        """Connect the flow to its target. Datagrams that are sent meanwhile wait.

        If the target cannot be reached, the flow and its datagrams are dropped after a pause.
        """
        host = target.host if target.port is None else UDP_PREFIX + target.host
        label = str(target) if target.port is None else f"udp/{target}"
        try:
            async with self._connects.turn(flow.source):
                flow.is_connecting = True
                _, far = await self._attachment.create_connection(
                    lambda: TunnelSide(ended=self._far_ended), host, target.port, timeout=_CONNECT_S
                )
        except (TunnelError, TimeoutError, ValueError) as error:
            flow.is_connecting = False
            self._traffic.fail(str(error))
            _log.warning("not_connected", target=label, text=str(error))
            await asyncio.sleep(_DEAD_S)
            flow.side.abort()
        else:
            flow.is_connecting = False
            self._traffic.on_opened(far)
            splice(flow.side, far)

    def _far_ended(self, far: Side, error: Exception | None) -> None:
        assert isinstance(far, TunnelSide)
        self._traffic.on_ended(far)
        if error is not None:
            self._traffic.fail(str(error))
            _log.warning("lost", text=str(error))
