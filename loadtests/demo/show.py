"""The displays of the demo: drawn on a terminal, printed line by line elsewhere, or as JSON."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from loadtests.demo.play import Act, Play
from loadtests.demo.report import Report, pretty_bytes
from loadtests.demo.stage import TOPOLOGY

__all__ = ["FRAME_S", "JsonShow", "LiveShow", "PlainShow", "Show"]

_EVENTS = 7  # lines
FRAME_S = 0.1
_LINE_S = 1.0
_WIDE = 70  # columns that all figures need
_MIB = 1024 * 1024


class Show:
    """A display of a play."""

    def said(self, text: str) -> None:
        """Show an event."""

    @asynccontextmanager
    async def watching(self, play: Play) -> AsyncIterator[None]:
        """Show the progress of the play until the end of the `async with` block."""
        yield

    def conclude(self, report: Report) -> None:
        """Show the report at the end."""


class JsonShow(Show):
    """Prints the report alone, as JSON."""

    def conclude(self, report: Report) -> None:
        print(msgspec.json.encode(report).decode())


class PlainShow(Show):
    """Prints a line for each event, and one per second for the progress."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        print(TOPOLOGY, flush=True)

    def said(self, text: str) -> None:
        print(f"{time.monotonic() - self._began_s:6.1f} s  {text}", flush=True)

    @asynccontextmanager
    async def watching(self, play: Play) -> AsyncIterator[None]:
        task = asyncio.get_running_loop().create_task(self._tell(play))
        try:
            yield
        finally:
            task.cancel()

    async def _tell(self, play: Play) -> None:
        while True:
            await asyncio.sleep(_LINE_S)
            for act in play.acts:
                if act.flow.began_s and act.flow.received_bytes < act.flow.size_bytes:
                    self.said(f"  {act.name} {act.flow.received_bytes / act.flow.size_bytes:4.0%}")

    def conclude(self, report: Report) -> None:
        print()
        for name, figures in report.rows():
            print(f"{name:<16}{figures}")
        print(f"\n{report.verdict}", flush=True)


class LiveShow(Show):
    """Draws progress bars, the figures of the client's endpoint, and the latest events."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._began_s = time.monotonic()
        self._events: deque[tuple[float, str]] = deque(maxlen=_EVENTS)
        self._rates: dict[str, _Rate] = {}

    def said(self, text: str) -> None:
        self._events.append((time.monotonic() - self._began_s, text))

    @asynccontextmanager
    async def watching(self, play: Play) -> AsyncIterator[None]:
        self._console.print(Padding(Text(TOPOLOGY, style="bold"), (1, 0, 0, 0)))
        with Live(self.draw(play), console=self._console, auto_refresh=False) as live:
            task = asyncio.get_running_loop().create_task(self._redraw(play, live))
            try:
                yield
            finally:
                task.cancel()
                live.update(self.draw(play), refresh=True)

    async def _redraw(self, play: Play, live: Live) -> None:
        while True:
            await asyncio.sleep(FRAME_S)
            live.update(self.draw(play), refresh=True)

    def draw(self, play: Play) -> RenderableType:
        """Return one frame of the display."""
        bars = Table.grid(padding=(0, 2))
        for act in play.acts:
            bars.add_row(*self._bar(act))
        events = Table.grid(padding=(0, 2))
        for at_s, text in self._events:
            style = "bold red" if text.startswith("kill") else "green" if "goes on" in text else ""
            events.add_row(Text(f"{at_s:5.1f} s", style="dim"), Text(text, style=style))
        return Padding(Group(bars, Text(), self._figures(play), Text(), events), (1, 0))

    def _bar(self, act: Act) -> tuple[RenderableType, ...]:
        flow = act.flow
        rate = self._rates.setdefault(act.name, _Rate())
        share = flow.received_bytes / flow.size_bytes
        width = max(10, min(48, self._console.width - 48))
        is_done = flow.received_bytes >= flow.size_bytes
        speed = flow.bytes_per_second if is_done else rate.of(flow.received_bytes)
        return (
            Text(act.name, style="bold"),
            ProgressBar(total=1.0, completed=share, width=width, complete_style="cyan", finished_style="green"),
            Text(f"{share:4.0%}"),
            Text(f"{pretty_bytes(flow.received_bytes):>8}"),
            Text(f"{speed / _MIB:6.1f} MiB/s" if flow.began_s else "", style="cyan"),
        )

    def _figures(self, play: Play) -> RenderableType:
        if play.stage is None:
            return Text()
        traffic = play.stage.traffic()
        figures = Table.grid(padding=(0, 3))
        figures.add_row(
            *([_figure("carrier", traffic.carrier.partition(" ")[0])] if self._console.width >= _WIDE else []),
            _figure("RTT", f"{traffic.round_trip_us / 1000:.1f} ms"),
            _figure("RTO", f"{traffic.rto_us / 1000:.0f} ms"),
            _figure("repeats", str(sum(traffic.exchanges_failed.values()))),
            _figure("resent", str(sum(traffic.resent.values()))),
        )
        return figures

    def conclude(self, report: Report) -> None:
        table = Table.grid(padding=(0, 2))
        for name, figures in report.rows():
            table.add_row(Text(name, style="bold"), Text(figures))
        self._console.print(table)
        self._console.print(Padding(Text(report.verdict, style="bold red" if report.failure else "bold green"), (1, 0)))


class _Rate:
    """The rate in bytes per second, over about the last second."""

    def __init__(self) -> None:
        self._samples: deque[tuple[float, int]] = deque(maxlen=round(1.0 / FRAME_S) + 1)

    def of(self, count: int) -> float:
        """Note the current number of bytes, and return the rate."""
        self._samples.append((time.monotonic(), count))
        (first_s, first), (last_s, last) = self._samples[0], self._samples[-1]
        return (last - first) / max(last_s - first_s, FRAME_S)


def _figure(name: str, value: str) -> Text:
    return Text.assemble((f"{name} ", "dim"), (value, "bold"))
