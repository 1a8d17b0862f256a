"""A picture of what contenders cost: a panel for each measure, with a bar for each contender."""

from collections.abc import Callable, Sequence
from html import escape

from loadtests.bench.peers.costs import Cost

__all__ = ["picture"]

_MEASURES: tuple[tuple[str, Callable[[Cost], float | None]], ...] = (
    ("up: seconds of processor time per GiB", lambda cost: cost.up_s_per_gib),
    ("down: seconds of processor time per GiB", lambda cost: cost.down_s_per_gib),
    ("an echo of 64 bytes: µs of processor time", lambda cost: cost.echo_us),
    ("a new connection: µs of processor time", lambda cost: cost.connection_us),
)
_WIDTH, _NAME, _VALUE, _ROW, _HEAD, _GAP = 640, 130, 80, 20, 26, 14


def picture(costs: Sequence[Cost]) -> str:
    """Return the picture as SVG. Bars of one panel have one scale; a contender without the measure has no bar."""
    panel = _HEAD + _ROW * len(costs) + _GAP
    parts = [_panel(title, [(one.name, value(one)) for one in costs]) for title, value in _MEASURES]
    moved = [f'<g transform="translate(0 {_GAP + index * panel})">{part}</g>' for index, part in enumerate(parts)]
    height = _GAP + panel * len(parts)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        f'font-family="sans-serif" font-size="12"><rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
        f"{''.join(moved)}</svg>\n"
    )


def _panel(title: str, values: Sequence[tuple[str, float | None]]) -> str:
    most = max((value for _, value in values if value is not None), default=0.0) or 1.0
    lines = [f'<text x="10" y="14" font-weight="bold" fill="#222222">{escape(title)}</text>']
    for index, (name, value) in enumerate(values):
        y = _HEAD + index * _ROW
        text = "failed" if value is None else f"{value:,.{2 if value < 100 else 0}f}"
        width = (value or 0.0) / most * (_WIDTH - _NAME - _VALUE)
        fill = "#1f6feb" if name.startswith("tunnel") else "#8c959f"
        lines.append(
            f'<text x="{_NAME - 8}" y="{y + 11}" text-anchor="end" fill="#222222">{escape(name)}</text>'
            f'<rect x="{_NAME}" y="{y}" width="{width:.1f}" height="{_ROW - 6}" fill="{fill}"/>'
            f'<text x="{_NAME + width + 6:.1f}" y="{y + 11}" fill="#222222">{text}</text>'
        )
    return "".join(lines)
