"""Flows of datagrams through the tunnel: each between one local sender and one target, on a connection of its own."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Hashable

import structlog

from tunnel import Attachment, TunnelError
from tunnel.datagrams import UDP_PREFIX, DatagramSide
from tunnel.splice import Side, TunnelSide, splice
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address

__all__ = ["FLOW_IDLE_S", "Flows"]

FLOW_IDLE_S = 60.0  # RFC 4787 requires 120 s of address translators; DNS, the usual traffic, needs only 30 s
FLOWS_MAX = 256
_CONNECT_S = 30.0
_DEAD_S = 5.0  # a flow that cannot reach its target lasts this much longer; only a new flow tries again
_log = structlog.get_logger("tunnel")


class Flows:
    """Flows by key. A flow begins with its first datagram, and ends when it is idle.

    At the limit, a new flow replaces the least recently used one.
    """

    def __init__(
        self,
        attachment: Attachment,
        traffic: Traffic,
        *,
        flows_max: int = FLOWS_MAX,
        idle_seconds: float = FLOW_IDLE_S,
    ) -> None:
        self._attachment = attachment
        self._traffic = traffic
        self._flows_max = flows_max
        self._idle_seconds = idle_seconds
        self._flows: OrderedDict[Hashable, DatagramSide] = OrderedDict()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._flows)

    def send(self, key: Hashable, target: Address, datagram: bytes, deliver: Callable[[bytes], None]) -> None:
        """Send a datagram to the target, on a new flow if the key has none.

        The `deliver` of the first datagram receives the answers, for as long as the flow lasts.
        """
        if self._is_closed:
            return
        flow = self._flows.get(key)
        if flow is None:
            while len(self._flows) >= self._flows_max:
                next(iter(self._flows.values())).close()
            flow = self._open(key, target, deliver)
        self._flows.move_to_end(key)
        flow.offer(datagram)

    async def close(self) -> None:
        """End all flows, and take no more datagrams."""
        self._is_closed = True
        for flow in list(self._flows.values()):
            flow.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def _open(self, key: Hashable, target: Address, deliver: Callable[[bytes], None]) -> DatagramSide:
        def ended(side: Side, error: Exception | None) -> None:
            if self._flows.get(key) is side:
                del self._flows[key]

        flow = self._flows[key] = DatagramSide(deliver, ended, idle_seconds=self._idle_seconds)
        task = asyncio.get_running_loop().create_task(self._connect(flow, target))
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))
        return flow

    async def _connect(self, flow: DatagramSide, target: Address) -> None:
        """Connect the flow to its target. Datagrams that are sent meanwhile wait.

        If the target cannot be reached, the flow and its datagrams are dropped after a pause.
        """
        host = target.host if target.port is None else UDP_PREFIX + target.host
        try:
            _, far = await self._attachment.create_connection(
                lambda: TunnelSide(ended=self._far_ended), host, target.port, timeout=_CONNECT_S
            )
        except (TunnelError, TimeoutError, ValueError) as error:
            self._traffic.fail(str(error))
            label = str(target) if target.port is None else f"udp/{target}"
            _log.warning("not_connected", target=label, text=str(error))
            await asyncio.sleep(_DEAD_S)
            flow.abort()
        else:
            self._traffic.opened(far)
            splice(flow, far)

    def _far_ended(self, far: Side, error: Exception | None) -> None:
        assert isinstance(far, TunnelSide)
        self._traffic.ended(far)
        if error is not None:
            self._traffic.fail(str(error))
            _log.warning("lost", text=str(error))
