"""The dispatcher: it gives packets to handlers, in order within an executor id, concurrently otherwise."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import TypeAlias

from tunnel.messages.packets.assembler import Packet
from tunnel.messages.packets.bodies import SpooledBody

__all__ = ["Dispatcher", "Handler"]

Handler: TypeAlias = Callable[[Packet], Awaitable[None] | None]


class Dispatcher:
    """Runs the handler of a packet's target. It calls a plain function at once, unless the executor id is busy.

    Coroutine functions run in tasks. The packets of one executor id are handled one at a time, in the order in which
    they were completed.
    """

    def __init__(self) -> None:
        self._handlers: dict[int, tuple[Handler, bool]] = {}
        self._executors: dict[int, deque[tuple[Handler, Packet]]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.pending_bytes = 0  # held by packets whose handlers have not returned
        self._drained = asyncio.Event()
        self._drained.set()

    def register(self, target: int, handler: Handler) -> None:
        """Give the packets for `target` to this handler. ValueError if the target already has a handler."""
        if target in self._handlers:
            raise ValueError(f"target {target} already has a handler: unregister it first")
        self._handlers[target] = handler, asyncio.iscoroutinefunction(handler)

    def unregister(self, target: int) -> None:
        """Refuse the packets for `target` from now on."""
        self._handlers.pop(target, None)

    def dispatch(self, packet: Packet) -> bool:
        """Call or queue the handler of a packet; return False if there is none. The body is closed after the call."""
        found = self._handlers.get(packet.target)
        if found is None:
            _close(packet)
            return False
        handler, is_coroutine = found
        queue = self._executors.get(packet.executor_id)
        if queue is None and not is_coroutine:
            self._finish_now(handler, packet)
            return True
        self._hold(packet)
        if queue is None:
            queue = self._executors[packet.executor_id] = deque()
            task = asyncio.get_running_loop().create_task(self._execute(packet.executor_id, queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        queue.append((handler, packet))
        return True

    async def room(self, bytes_max: int) -> None:
        """Wait until the packets of unfinished handlers hold at most `bytes_max` bytes."""
        while self.pending_bytes > bytes_max:
            self._drained.clear()
            await self._drained.wait()

    async def close(self) -> None:
        """Cancel the handlers that are still running, and close the bodies of waiting packets."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for queue in self._executors.values():
            for _, packet in queue:
                _close(packet)
        self._executors.clear()

    def _finish_now(self, handler: Handler, packet: Packet) -> None:
        try:
            handler(packet)
        except Exception as error:
            _report(error)
        finally:
            _close(packet)

    async def _execute(self, executor_id: int, queue: deque[tuple[Handler, Packet]]) -> None:
        try:
            while queue:
                handler, packet = queue.popleft()
                try:
                    outcome = handler(packet)
                    if outcome is not None:
                        await outcome
                except Exception as error:
                    _report(error)
                finally:
                    _close(packet)
                    self._release(packet)
        finally:
            if not queue:
                self._executors.pop(executor_id, None)

    def _hold(self, packet: Packet) -> None:
        self.pending_bytes += _cost(packet)

    def _release(self, packet: Packet) -> None:
        self.pending_bytes -= _cost(packet)
        self._drained.set()


def _cost(packet: Packet) -> int:
    return 256 + (len(packet.body) if isinstance(packet.body, bytes) else 0)


def _close(packet: Packet) -> None:
    if isinstance(packet.body, SpooledBody):
        packet.body.close()


def _report(error: Exception) -> None:
    context = {"message": "unhandled exception in a packet handler", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
