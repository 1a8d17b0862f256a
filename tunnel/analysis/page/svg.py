"""Charts as inline SVG: no script, no font, no network. Colours come from the page, so that they follow its theme."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise

__all__ = ["Axis", "Mark", "Series", "bars", "plot"]

WIDE, NARROW = 680, 340  # of a picture: the page shows one of the two, so that labels stay legible on a small screen
HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 260, 74, 28, 12, 44
BAR, BAR_GAP, LABEL = 20, 9, 315
_LETTER, _LEGEND_LINE = 7.4, 18  # widths and heights in a picture, with some room

Points = Sequence[tuple[float, float]]


@dataclass(frozen=True, slots=True)
class Axis:
    """The title and scale of an axis; `words` turns a value into a label."""

    title: str
    words: Callable[[float], str] = lambda value: f"{value:g}"
    logarithmic: bool = False


@dataclass(frozen=True, slots=True)
class Series:
    """A line or a set of points; `tone` is one of the page's colours, 1 to 6."""

    name: str
    points: Points
    tone: int = 1
    steps: bool = False
    dots: bool = False
    dashed: bool = False


Mark = tuple[str, float, str]  # label, value, text beside the bar


def bars(marks: Sequence[Mark], *, tone: int = 1, title: str = "") -> str:
    """Draw horizontal bars with labels; the largest fills the width."""
    if not marks:
        return ""
    most = max(value for _, value, _ in marks) or 1
    return _both(_bars_beside(marks, most, tone, title), _bars_below(marks, most, tone, title))


def _bars_beside(marks: Sequence[Mark], most: float, tone: int, title: str) -> str:
    room, parts = WIDE - LABEL - 140, []
    for index, (label, value, text) in enumerate(marks):
        y = BAR_GAP + index * (BAR + BAR_GAP)
        width = max(2.0, value / most * room)
        parts.append(
            f'<text class="label" x="{LABEL - 8}" y="{y + 14}" text-anchor="end">{escape(label)}</text>'
            f'<rect class="fill{tone}" x="{LABEL}" y="{y}" width="{width:.1f}" height="{BAR}" rx="3"/>'
            f'<text class="value" x="{LABEL + width + 7:.1f}" y="{y + 14}">{escape(text)}</text>'
        )
    return _picture(WIDE, len(marks) * (BAR + BAR_GAP) + BAR_GAP, "".join(parts), title)


def _bars_below(marks: Sequence[Mark], most: float, tone: int, title: str) -> str:
    """Draw each bar below its label, where the picture is narrow."""
    parts = []
    for index, (label, value, text) in enumerate(marks):
        y = BAR_GAP + index * (2 * BAR + BAR_GAP)
        parts.append(
            f'<text class="label" x="0" y="{y + 12}">{escape(label)}</text>'
            f'<text class="value" x="{NARROW}" y="{y + 12}" text-anchor="end">{escape(text)}</text>'
            f'<rect class="fill{tone}" x="0" y="{y + 18}" width="{max(2.0, value / most * NARROW):.1f}" '
            f'height="{BAR - 6}" rx="3"/>'
        )
    return _picture(NARROW, len(marks) * (2 * BAR + BAR_GAP) + BAR_GAP, "".join(parts), title)


def plot(series: Sequence[Series], x: Axis, y: Axis, *, title: str = "", y_from_0: bool = True) -> str:
    """Draw lines or points over two axes, with a legend if there is more than one series."""
    shown = [one for one in series if one.points]
    if not shown:
        return ""
    values = [py for one in shown for _, py in one.points]
    if y_from_0 and not y.logarithmic:
        values.append(0.0)
    return _both(*(_plot(shown, values, x, y, title, width) for width in (WIDE, NARROW)))


def _plot(shown: Sequence[Series], values: Sequence[float], x: Axis, y: Axis, title: str, width: int) -> str:
    legend, lines = _legend(shown, width) if len(shown) > 1 else ("", 0)
    top = TOP + lines * _LEGEND_LINE
    height = HEIGHT + max(0, lines - 1) * _LEGEND_LINE
    left, right = (LEFT, RIGHT) if width == WIDE else (LEFT, RIGHT - 14)
    x_scale = _Scale([px for one in shown for px, _ in one.points], left, width - right, x.logarithmic)
    y_scale = _Scale(values, height - BOTTOM, top, y.logarithmic)
    parts = [_grid(x_scale, y_scale, x, y), *(_draw(one, x_scale, y_scale) for one in shown), legend]
    return _picture(width, height, "".join(parts), title)


def _both(wide: str, narrow: str) -> str:
    return f'<div class="wide">{wide}</div><div class="narrow">{narrow}</div>'


class _Scale:
    """Maps values to coordinates, and chooses the ticks of an axis."""

    def __init__(self, values: Sequence[float], begin: float, end: float, logarithmic: bool) -> None:
        self._logarithmic = logarithmic
        usable = [value for value in values if value > 0] if logarithmic else list(values)
        low, high = (min(usable), max(usable)) if usable else (0.0, 1.0)
        if logarithmic:
            low, high = 10 ** math.floor(math.log10(low)), 10 ** math.ceil(math.log10(high))
            if low == high:
                high *= 10
        elif low == high:
            high = low + 1
        self.low, self.high, self.begin, self.end = low, high, begin, end

    def __call__(self, value: float) -> float:
        if self._logarithmic:
            share = (math.log10(max(value, self.low)) - math.log10(self.low)) / (
                math.log10(self.high) - math.log10(self.low)
            )
        else:
            share = (value - self.low) / (self.high - self.low)
        return self.begin + share * (self.end - self.begin)

    def ticks(self, wanted: int = 5) -> list[float]:
        if self._logarithmic:
            first, last = round(math.log10(self.low)), round(math.log10(self.high))
            every = max(1, -(-(last - first) // 7))
            return [10.0**power for power in range(first, last + 1, every)]
        raw = (self.high - self.low) / wanted
        power = 10 ** math.floor(math.log10(raw))
        step = next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= raw)
        first = math.ceil(self.low / step - 1e-9)
        count = math.floor(self.high / step + 1e-9) - first
        return [(first + index) * step for index in range(count + 1)]


def _grid(x_scale: _Scale, y_scale: _Scale, x: Axis, y: Axis) -> str:
    left, right, top, bottom = x_scale.begin, x_scale.end, y_scale.end, y_scale.begin
    parts = []
    for tick in y_scale.ticks():
        at = y_scale(tick)
        parts.append(
            f'<line class="grid" x1="{left}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>'
            f'<text class="tick" x="{left - 7}" y="{at + 4:.1f}" text-anchor="end">{escape(y.words(tick))}</text>'
        )
    ticks = [(x_scale(tick), x.words(tick)) for tick in x_scale.ticks(7 if right > NARROW else 4)]
    every = 1 + int(max(len(text) for _, text in ticks) * _LETTER * len(ticks) / (right - left)) if ticks else 1
    for at, text in ticks[::every]:
        parts.append(
            f'<line class="grid" x1="{at:.1f}" x2="{at:.1f}" y1="{top}" y2="{bottom}"/>'
            f'<text class="tick" x="{at:.1f}" y="{bottom + 16}" text-anchor="middle">{escape(text)}</text>'
        )
    middle, half = (left + right) / 2, (top + bottom) / 2
    parts.append(f'<text class="axis" x="{middle}" y="{bottom + 38}" text-anchor="middle">{escape(x.title)}</text>')
    turned = f'transform="rotate(-90 12 {half})"'
    parts.append(f'<text class="axis" x="12" y="{half}" text-anchor="middle" {turned}>{escape(y.title)}</text>')
    return "".join(parts)


def _draw(one: Series, x_scale: _Scale, y_scale: _Scale) -> str:
    places = [(x_scale(px), y_scale(py)) for px, py in one.points]
    if one.dots or len(places) == 1:
        # One path of zero-length lines with round ends takes a tenth of the bytes of separate circles.
        path = "".join(f"M{px:.1f} {py:.1f}h0" for px, py in places)
        return f'<path class="dots line{one.tone}" d="{path}"/>'
    path = f"M{places[0][0]:.1f} {places[0][1]:.1f}"
    for (_, before), (px, py) in pairwise(places):
        path += f"H{px:.1f}V{py:.1f}" if one.steps and before != py else f"L{px:.1f} {py:.1f}"
    dashed = " dashed" if one.dashed else ""
    return f'<path class="line line{one.tone}{dashed}" d="{path}"/>'


def _legend(shown: Sequence[Series], width: float) -> tuple[str, int]:
    """Return the legend, and the number of its lines: an entry that does not fit begins a new one."""
    parts, at, line = [], 0.0, 0
    for one in shown:
        room = 28 + _LETTER * len(one.name)
        if at and at + room > width:
            at, line = 0.0, line + 1
        y = 8 + line * _LEGEND_LINE
        parts.append(
            f'<rect class="fill{one.tone}" x="{at:.0f}" y="{y}" width="11" height="11" rx="2"/>'
            f'<text class="legend" x="{at + 16:.0f}" y="{y + 10}">{escape(one.name)}</text>'
        )
        at += room
    return "".join(parts), line + 1


def _picture(width: int, height: float, content: str, title: str) -> str:
    label = f"<title>{escape(title)}</title>" if title else ""
    return f'<svg viewBox="0 0 {width} {height:g}" role="img">{label}{content}</svg>'
