"""The recording of the demo: the frames of a run as one animated SVG, which browsers play without scripts."""

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from io import StringIO
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.layout import Layout
from rich.text import Text

from loadtests.demo.play import Play
from loadtests.demo.report import Report
from loadtests.demo.show import FRAME_S, LiveShow, PlainShow
from loadtests.demo.stage import TOPOLOGY

__all__ = ["COLUMNS", "ROWS", "RecordingShow", "film"]

COLUMNS, ROWS = 56, 24  # narrow: on a telephone, 56 columns are 6 pixels wide each
_PICTURE_S = 1.0
_HOLD_S = 8.0  # how long the last picture stays before the film begins again
_CHAR_PX, _LINE_PX, _MARGIN_PX = 12.2, 24.4, 16  # the sizes of rich's SVG
_SPAN = re.compile(r"(<text [^>]*?)(?: clip-path=[^>]*)?>([^<]*)</text>")  # a line's end is a span, too
_TITLE = "A run of make demo: a stream survives lost requests, and a relay that is killed twice."
_SVG = """\
<svg xmlns="http://www.w3.org/2000/svg" role="img" width="{width}" height="{height}" viewBox="0 0 {width} {height}">
<title>{title}</title>
<style>
text {{ font: 20px ui-monospace, SFMono-Regular, Menlo, Consolas, "DejaVu Sans Mono", monospace }}
.film {{ transform: translateY({last}px); animation: play {seconds}s step-end infinite }}
@keyframes play {{ {steps} }}
@media (prefers-reduced-motion: reduce) {{ .film {{ animation: none }} }}
{styles}
</style>
<rect width="{width}" height="{height}" rx="10" fill="#1c2128"/>
<svg x="{margin}" y="{margin}" width="{inner_width}" height="{inner_height}"><g class="film">
{matrix}
</g></svg>
</svg>
"""


class RecordingShow(PlainShow):
    """Prints the events as `PlainShow` does, takes a picture at each event and each second, and writes the film."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self._file = file
        self._console = Console(
            record=True, file=StringIO(), width=COLUMNS, force_terminal=True, color_system="truecolor", highlight=False
        )
        self._live = LiveShow(self._console)
        self._play: Play | None = None
        self._taken_s: list[float] = []

    def said(self, text: str) -> None:
        super().said(text)
        self._live.said(text)
        if self._play is not None and self._play.stage is not None:
            self._take(self._live.draw(self._play))

    @asynccontextmanager
    async def watching(self, play: Play) -> AsyncIterator[None]:
        self._play = play
        task = asyncio.get_running_loop().create_task(self._watch(play))
        try:
            yield
        finally:
            task.cancel()

    async def _watch(self, play: Play) -> None:
        while True:
            drawn = self._live.draw(play)  # as often as on a terminal: the rates are those of the latest frames
            is_due = not self._taken_s or time.monotonic() - self._taken_s[-1] >= _PICTURE_S
            if play.stage is not None and is_due:
                self._take(drawn)
            await asyncio.sleep(FRAME_S)

    def _take(self, drawn: RenderableType) -> None:
        head = Text.assemble(("$ ", "dim"), ("make demo\n", "bold"), (TOPOLOGY, "dim"))
        self._console.print(Layout(Group(head, drawn)), height=ROWS)
        self._taken_s.append(time.monotonic())

    def conclude(self, report: Report) -> None:
        super().conclude(report)
        if self._play is None or report.failure:
            print(f"{self._file} was not written, because the run failed", flush=True)
            return
        self._take(Group(self._live.draw(self._play), Text(report.verdict, style="bold green")))
        self._file.write_text(film(self._console, self._taken_s), encoding="utf-8")
        print(f"wrote {self._file}: {len(self._taken_s)} pictures, {self._file.stat().st_size // 1024} KiB", flush=True)


def film(console: Console, taken_s: list[float]) -> str:
    """Return the pictures as one SVG. The console has recorded them, one below the other, each of them ROWS high.

    `taken_s` has the time of each picture. Without animation, the last picture is shown.
    """
    styles, matrix = console.export_svg(code_format="{styles}\0{matrix}", unique_id="t").split("\0")
    height = ROWS * _LINE_PX
    seconds = taken_s[-1] - taken_s[0] + _HOLD_S
    steps = " ".join(
        f"{(at - taken_s[0]) / seconds:.2%} {{ transform: translateY({-index * height:.1f}px) }}"
        for index, at in enumerate(taken_s)
    )
    spans = [(tag, text.replace("&#160;", "\u00a0")) for tag, text in _SPAN.findall(matrix) if text != "\n"]
    width = COLUMNS * _CHAR_PX
    return _SVG.format(
        title=_TITLE,
        width=round(width + 2 * _MARGIN_PX),
        height=round(height + 2 * _MARGIN_PX),
        inner_width=round(width),
        inner_height=round(height),
        margin=_MARGIN_PX,
        last=f"{-(len(taken_s) - 1) * height:.1f}",
        seconds=f"{seconds:.1f}",
        steps=steps,
        styles=styles,
        matrix="\n".join(f"{tag}>{text}</text>" for tag, text in spans),
    )
