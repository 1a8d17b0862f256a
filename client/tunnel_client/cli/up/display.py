"""The lines of `tunnel up` on a terminal: two for the command and the relay, one for each entry, redrawn in place.

A thread draws them, so that a terminal that stands still (Ctrl-S) does not stop the tunnel. Lines of the log appear
above them.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any, Protocol, TextIO

from tunnel.ground.printable import printable
from tunnel.logs.setup import queued
from tunnel.process.command_line import LOG_LEVELS, may_escape, shows_people
from tunnel_client.cli.status_table import entry_lines
from tunnel_client.status import ClientReport

__all__ = ["Display", "HasReport", "can_draw", "drawn"]

_INTERVAL_S = 0.5
_LINES_MAX = 1000  # lines of the log that may wait to be drawn; further ones displace the oldest
_END_S = 1.0  # time for the last drawing; a terminal may stand still


class HasReport(Protocol):
    """An object whose report is drawn."""

    def report(self) -> ClientReport: ...


def can_draw() -> bool:
    """Return whether lines can be redrawn: only if standard error is a terminal with escape codes, where lines for
    people may be written, and if rich is installed."""
    if not (may_escape(sys.stderr) and shows_people()):
        return False
    try:
        import rich.live  # noqa: F401
    except ImportError:
        return False
    return True


@contextmanager
def drawn(source: HasReport, level: str) -> Iterator[None]:
    """Draw the lines while the context lasts, within a running event loop. The log then appears above them."""
    display = Display(sys.stderr)
    loop = asyncio.get_running_loop()
    timer: asyncio.TimerHandle | None = None

    def look() -> None:
        nonlocal timer
        display.report = source.report()
        timer = loop.call_later(_INTERVAL_S, look)

    look()
    try:
        with queued(LOG_LEVELS[level], display, colors=True):  # type: ignore[arg-type]  # it has all that the log needs
            yield
    finally:
        assert timer is not None
        timer.cancel()
        display.report = source.report()
        display.close()


class Display:
    """Draws the latest `report`. It is also the stream of the log: until `close`, its `write` never blocks."""

    def __init__(self, terminal: TextIO) -> None:
        self.report: ClientReport | None = None
        self._terminal = terminal
        self._lines: deque[str] = deque(maxlen=_LINES_MAX)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="tunnel-display", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Draw once more, and leave the terminal to others."""
        self._over.set()
        self._thread.join(_END_S)

    # the stream of the log

    def isatty(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._over.is_set():
            return self._terminal.write(text)
        self._lines.append(text.rstrip("\n"))
        return len(text)

    def flush(self) -> None:
        """Do nothing: the thread writes soon."""

    # the thread

    def _run(self) -> None:
        from rich.console import Console
        from rich.live import Live
        from rich.text import Text

        console = Console(file=self._terminal, highlight=False)
        with (
            suppress(OSError),
            Live(console=console, auto_refresh=False, redirect_stdout=False, redirect_stderr=False) as live,
        ):
            while True:
                is_last = self._over.wait(_INTERVAL_S)
                while self._lines:
                    console.print(Text.from_ansi(self._lines.popleft()), soft_wrap=True)
                if self.report is not None:
                    live.update(_drawing(self.report, console.width), refresh=True)
                if is_last:
                    return


def _drawing(report: ClientReport, width: int) -> Any:
    """Return the lines for the command, the relay and each entry, each cut to the width."""
    from rich.text import Text

    state = report.trouble or (f"attached: {report.carrier}" if report.attached else "not attached")
    lines = [f"tunnel {printable(report.command)}, for {time.time() - report.started_s:.0f} s", f"  {printable(state)}"]
    lines += entry_lines(report.entries, has_failures=False)
    text = Text(no_wrap=True, overflow="ellipsis")
    for number, line in enumerate(lines):
        style = "bold" if number == 0 else "yellow" if number == 1 and report.trouble else ""
        style = "red" if " FAILED" in line else style
        cut = line if len(line) < width else f"{line[: max(1, width - 2)]}~"
        text.append(cut + "\n" * (number < len(lines) - 1), style=style)
    return text
