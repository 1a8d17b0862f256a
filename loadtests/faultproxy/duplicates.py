"""Sending a request upstream a second time, at once or later."""

import asyncio

import h11

from loadtests.faultproxy.context import Context
from loadtests.faultproxy.faults import ExchangePlan, FaultKind
from loadtests.faultproxy.http import HttpSide, Target, UpstreamError, wants_upgrade
from tunnel.traces.record import TraceFault

__all__ = ["Duplicator"]

_NO_BODY: list[bytes] = []


class Duplicator:
    """Keeps a copy of a request whose plan has duplicates, and sends the duplicates when the request is complete.

    Each duplicate gets its own connection, and its answer is discarded. Upgrades are not duplicated, nor are requests
    that are too large to be kept.
    """

    def __init__(self, context: Context, target: Target, head: h11.Request, plan: ExchangePlan) -> None:
        self._context = context
        self._target = target
        self._number = plan.number
        self._planned = () if wants_upgrade(head) else plan.duplicates_after_us
        headers = [(name, value) for name, value in head.headers.raw_items() if name.lower() != b"expect"]
        self._head = h11.Request(method=head.method, target=head.target, headers=headers)
        self._pieces: list[bytes] = []
        self._size = 0

    def keep(self, piece: bytes) -> None:
        """Keep the next piece of the body."""
        if self._planned:
            self._pieces.append(piece)
            self._size += len(piece)
            if self._size > self._context.copies_room_bytes:
                self._planned, self._pieces = (), _NO_BODY

    def send(self) -> None:
        """Start the planned duplicates, now that the request is complete; each is sent when it is due."""
        for kind, after_us in self._planned:
            self._context.copies_room_bytes -= self._size
            self._context.spawn(self._duplicate(kind, after_us))

    async def _duplicate(self, kind: FaultKind, after_us: int) -> None:
        try:
            if after_us:
                await asyncio.sleep(after_us / 1e6)
            await self._context.gates.request.passed()
            await self._exchange(kind, after_us)
        finally:
            self._context.copies_room_bytes += self._size

    async def _exchange(self, kind: FaultKind, after_us: int) -> None:
        try:
            side = HttpSide(await self._context.dial(self._target), h11.CLIENT)
        except OSError:
            return
        self._context.recorder.fault(
            kind, TraceFault.REQUEST_DUPLICATED, self._number, size_bytes=self._size, latency_us=after_us
        )
        try:
            await side.send(self._head)
            for piece in self._pieces:
                await side.send(h11.Data(data=piece))
            await side.send(h11.EndOfMessage())
            while not isinstance(await side.next_event(), h11.Response):
                pass
            await side.discard()
        except UpstreamError:
            self._context.counts.upstream_errors += 1
        finally:
            side.stream.close()
