"""Blackholes: gates that let nothing pass while they are shut."""

import asyncio
import contextlib
from collections.abc import Callable, Iterator

from loadtests.faultproxy.faults import FaultKind, Side
from loadtests.faultproxy.options import Blackhole
from loadtests.faultproxy.recorder import Recorder
from tunnel.traces.record import TraceFault

__all__ = ["Gate", "Gates"]


class Gate:
    """One direction. What waits at it passes in order when it opens. It may be shut several times over."""

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
        """Wait until it is open."""
        while not self.is_open:
            await self._opened.wait()

    def call(self, callback: Callable[[], None]) -> None:
        """Call it now, or when the gate opens."""
        if self.is_open:
            callback()
        else:
            self._callbacks.append(callback)


class Gates:
    """Both directions, and the blackholes that shut them."""

    def __init__(self, recorder: Recorder) -> None:
        self.request = Gate()
        self.response = Gate()
        self._recorder = recorder

    @contextlib.contextmanager
    def blackhole(self, side: str = "") -> Iterator[None]:
        """From now until the end of the block nothing passes on this side; by default on both."""
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
        """Do as the option says, until cancelled."""
        await asyncio.sleep(option.every_us / 1e6)
        while True:
            with self.blackhole(option.side):
                await asyncio.sleep(option.lasts_us / 1e6)
            if option.once:
                return
            await asyncio.sleep((option.every_us - option.lasts_us) / 1e6)
