"""Writes the tables of docs/METRICS.md: python -m tests.metrics.document."""

from collections.abc import Iterable
from pathlib import Path

from tunnel.metrics.endpoint import ENDPOINT_METRICS
from tunnel.metrics.metric import OPEN_LABELS, Metric
from tunnel.metrics.process import PROCESS_METRICS
from tunnel_servlet.exit.dial_counts import EXIT_METRICS
from tunnel_servlet.web.metrics import RELAY_METRICS

__all__ = ["ALL", "DOCUMENT", "SECTIONS", "tables", "write"]

DOCUMENT = Path(__file__).resolve().parents[2] / "docs" / "METRICS.md"
_BEGIN, _END = "<!-- tables: python -m tests.metrics.document -->\n", "<!-- end of the tables -->\n"

SECTIONS = {
    "Every process": PROCESS_METRICS,
    "Relays": tuple(each for each in RELAY_METRICS if each not in {*PROCESS_METRICS, *EXIT_METRICS}),
    "Exits": EXIT_METRICS,
    "Endpoints": tuple(each for each in ENDPOINT_METRICS if each not in PROCESS_METRICS),
}
ALL = {each.name: each for section in SECTIONS.values() for each in section}


def tables() -> str:
    """Return the tables of all metrics."""
    lines: list[str] = []
    for title, metrics in SECTIONS.items():
        lines += [f"### {title}", "", "| metric | kind | labels | meaning |", "|---|---|---|---|", *_rows(metrics), ""]
    return "\n".join(lines)


def _rows(metrics: Iterable[Metric]) -> Iterable[str]:
    for each in metrics:
        labels = "; ".join(
            f"`{label}`" if label in OPEN_LABELS else f"`{label}`: {', '.join(texts)}"
            for label, texts in each.labels.items()
        )
        yield f"| `{each.name}` | {each.kind} | {labels or '-'} | {each.meaning} |"


def write(text: str) -> str:
    """Return the document with the present tables in it."""
    before, _, rest = text.partition(_BEGIN)
    _, _, after = rest.partition(_END)
    return f"{before}{_BEGIN}\n{tables()}\n{_END}{after}"


if __name__ == "__main__":
    DOCUMENT.write_text(write(DOCUMENT.read_text()))
