"""Blackholes: periods during which gates let nothing pass."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from loadtests.faultproxy.faults import FaultKind, Side
from loadtests.faultproxy.options import Blackhole
from loadtests.faultproxy.recorder import Recorder
from tunnel.traces.record import TraceFault

__all__ = ["Gate", "Gates"]


class Gate:
    """A gate for one direction. All that waits at it passes in order when it opens.

    Each shut() needs its own open(): the gate opens with the last one.
    """

    def __init__(self) -> None:
        self._shut = 0
        self._opened = asyncio.Event()
        self._opened.set()
        self._callbacks: list[Callable[[], None]] = []

    @property
    def is_open(self) -> bool:
        return self._shut == 0

    def shut(self) -> None:
        self._shut += 1
        self._opened.clear()

    def open(self) -> None:
        """Undo one shut()."""
        self._shut -= 1
        if self.is_open:
            self._opened.set()
            callbacks, self._callbacks = self._callbacks, []
            for callback in callbacks:
                callback()

    async def passed(self) -> None:
        """Wait until the gate is open."""
        while not self.is_open:
            await self._opened.wait()

    def call(self, callback: Callable[[], None]) -> None:
        """Run the callback now if the gate is open, else when it opens."""
        if self.is_open:
            callback()
        else:
            self._callbacks.append(callback)


class Gates:
    """The gates of both directions, and the blackholes that shut them."""

    def __init__(self, recorder: Recorder) -> None:
        self.request = Gate()
        self.response = Gate()
        self._recorder = recorder

    @contextlib.contextmanager
    def blackhole(self, side: str = "") -> Iterator[None]:
        """Let nothing pass in this direction until the end of the `with` block; by default in both directions."""
        sides = {Side.REQUEST: self.request, Side.RESPONSE: self.response}
        gates = [gate for name, gate in sides.items() if side in ("", name)]
        self._recorder.fault(FaultKind.BLACKHOLE, TraceFault.BLACKHOLE, text=side or "both")
        for gate in gates:
            gate.shut()
        try:
            yield
        finally:
            self._recorder.healed(f"{FaultKind.BLACKHOLE} {side or 'both'}")
            for gate in gates:
                gate.open()

    async def run(self, option: Blackhole) -> None:
        """Produce the blackholes that the option describes, until the last one or until cancelled."""
        await asyncio.sleep(option.every_us / 1e6)
        while True:
            with self.blackhole(option.side):
                await asyncio.sleep(option.lasts_us / 1e6)
            if option.once:
                return
            await asyncio.sleep((option.every_us - option.lasts_us) / 1e6)
