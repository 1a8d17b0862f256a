"""The page of a stress run: one HTML file with inline plots, for light and dark screens and for print."""

import html
from collections.abc import Sequence
from itertools import pairwise

from loadtests.stress.gates import Finding
from loadtests.stress.measures import Row
from loadtests.stress.outcome import Outcome

__all__ = ["render"]

_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 640, 180, 56, 22
_COLOURS = ("#2f6fde", "#d9622b", "#2a9d62", "#a14bc4", "#b3862b")
_MIB = 1 << 20
_TYPES = 12  # types of objects of a process
_POPULATION_TEXT = (
    "Objects of the tunnel's own types, tasks and sockets: before the first user, the most at any count, and after the "
    "last connection has ended. The types with the most are listed."
)

_STYLE = """
:root { color-scheme: light dark; --ink: #1d2430; --soft: #6b7686; --line: #d8dde5; --paper: #fff; --bad: #c0392b;
  --good: #1e8449; }
@media (prefers-color-scheme: dark) { :root { --ink: #e6e9ef; --soft: #98a2b3; --line: #394150; --paper: #161a21;
  --bad: #ff7b6b; --good: #5fd38d; } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); max-width: 1340px;
  margin: 2rem auto; padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin-bottom: .2rem; } h2 { font-size: 1.1rem; margin: 2rem 0 .4rem; }
p.soft, figcaption { color: var(--soft); } table { border-collapse: collapse; margin: .5rem 0; }
th, td { text-align: left; padding: .25rem .9rem .25rem 0; border-bottom: 1px solid var(--line); }
td.number { text-align: right; font-variant-numeric: tabular-nums; }
.ok { color: var(--good); } .no { color: var(--bad); }
.plots { display: grid; grid-template-columns: repeat(auto-fit, minmax(420px, 1fr)); gap: 1.2rem; }
figure { margin: 0; break-inside: avoid; } svg { width: 100%; height: auto; }
svg text { fill: var(--soft); font: 11px system-ui, sans-serif; } svg .grid { stroke: var(--line); }
"""


def render(outcome: Outcome, findings: Sequence[Finding], command: str) -> str:
    """Return the whole page as HTML."""
    failed = [finding for finding in findings if not finding.ok]
    verdict = (
        f"<p class='ok'>Every gate held: {outcome.summary['actions']:,} actions, no wrong byte.</p>"
        if not failed
        else f"<p class='no'>Broken: {html.escape(', '.join(finding.name for finding in failed))}.</p>"
    )
    seconds = outcome.rows[-1]["seconds"]
    parts = [
        "<!doctype html><html lang='en'><meta charset='utf-8'><title>Stress run</title>",
        f"<style>{_STYLE}</style><h1>Stress run</h1>",
        f"<p class='soft'>{seconds:,.0f} s; <code>{html.escape(command)}</code></p>{verdict}",
        "<h2>Gates</h2>",
        _table(("gate", "found", "limit", ""), [_gate_row(finding) for finding in findings]),
        "<h2>Goodput by step</h2>",
        "<p class='soft'>Bytes that users moved in actions without an error, for each loss of single packets.</p>",
        _table(
            ("loss at the relay", "seconds", "goodput, MB/s"),
            [(loss or "?", f"{length:,.0f}", f"{rate / 1e6:,.2f}") for loss, length, rate in outcome.steps],
        ),
        "<h2>Measures over time</h2><div class='plots'>",
        *_plots(outcome),
        "</div><h2>Actions</h2>",
        _table(
            ("action", "count", "failed", "p50, ms", "p99, ms"),
            [
                (
                    name,
                    f"{entry['count']:,}",
                    f"{entry['failures']:,}",
                    f"{entry['p50_ms']:,.0f}",
                    f"{entry['p99_ms']:,.0f}",
                )
                for name, entry in sorted(outcome.summary["by_action"].items())
            ],
        ),
        "<h2>Retransmissions by cause</h2>",
        _repairs(outcome),
        "<h2>Object population</h2>",
        f"<p class='soft'>{_POPULATION_TEXT}</p>",
        *_populations(outcome),
    ]
    return "\n".join(parts)


def _gate_row(finding: Finding) -> tuple[str, str, str, str]:
    return finding.name, finding.found, finding.limit, "held" if finding.ok else "BROKEN"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    cells = "".join(f"<th>{html.escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(_cell(value) for value in row) + "</tr>" for row in rows)
    return f"<table><tr>{cells}</tr>{body}</table>"


def _cell(value: str) -> str:
    kind = "number" if value.replace(",", "").replace(".", "").isdigit() else ""
    kind = {"held": "ok", "BROKEN": "no"}.get(value, kind)
    return f"<td class='{kind}'>{html.escape(value)}</td>"


def _plots(outcome: Outcome) -> list[str]:
    rows = outcome.rows
    rates = [(row["seconds"], (row["moved_bytes"] - before["moved_bytes"]) / 1e6) for before, row in pairwise(rows)]
    resent = sorted(outcome.resent)
    return [
        _plot("Throughput, MB/s", {"users": rates}),
        _plot(
            "Queues, MiB",
            {
                name: _series(rows, f"{name}_bytes", _MIB)
                for name in ("send_queue", "receive_queue", "mailbox", "unconfirmed")
            },
        ),
        _plot(
            "Round trip and timeout, ms",
            {
                "median RTO": _series(rows, "rto_ms"),
                "largest RTO": _series(rows, "rto_ms_max"),
                "median SRTT": _series(rows, "srtt_ms"),
            },
        ),
        _plot(
            "Retransmitted packets per second",
            {cause: [(row["seconds"], row["resent_new"].get(cause, 0)) for row in rows] for cause in resent},
        ),
        _plot("Resident memory, MiB", _by_process(rows, "rss_bytes", _MIB)),
        _plot("Descriptors", _by_process(rows, "descriptors", 1)),
        _plot("Connections", {"open": _series(rows, "connections"), "users": _series(rows, "users")}),
        _plot("Batches in flight", {"unreceipted": _series(rows, "unreceipted_batches")}),
    ]


def _series(rows: Sequence[Row], name: str, unit: float = 1) -> list[tuple[float, float]]:
    return [(row["seconds"], row[name] / unit) for row in rows]


def _by_process(rows: Sequence[Row], name: str, unit: float) -> dict[str, list[tuple[float, float]]]:
    processes = sorted({process for row in rows for process in row[name]})
    return {
        process: [(row["seconds"], row[name][process] / unit) for row in rows if process in row[name]]
        for process in processes
    }


def _plot(title: str, series: dict[str, list[tuple[float, float]]]) -> str:
    top = max((y for points in series.values() for _, y in points), default=0) * 1.05 or 1
    end = max((x for points in series.values() for x, _ in points), default=0) or 1

    def place(x: float, y: float) -> str:
        right = _LEFT + x / end * (_WIDTH - _LEFT - 8)
        return f"{right:.1f},{_HEIGHT - _BOTTOM - y / top * (_HEIGHT - _BOTTOM - 10):.1f}"

    parts = [f"<figure><figcaption>{html.escape(title)}</figcaption><svg viewBox='0 0 {_WIDTH} {_HEIGHT}' role='img'>"]
    for share in (0, 0.5, 1):
        y = float(place(0, top * share).split(",")[1])
        parts.append(f"<line class='grid' x1='{_LEFT}' x2='{_WIDTH - 8}' y1='{y}' y2='{y}'/>")
        parts.append(f"<text x='{_LEFT - 6}' y='{y + 4}' text-anchor='end'>{top * share:,.4g}</text>")
    parts.append(f"<text x='{_LEFT}' y='{_HEIGHT - 6}'>0 s</text>")
    parts.append(f"<text x='{_WIDTH - 8}' y='{_HEIGHT - 6}' text-anchor='end'>{end:,.0f} s</text>")
    for number, (name, points) in enumerate(series.items()):
        colour = _COLOURS[number % len(_COLOURS)]
        line = " ".join(place(x, y) for x, y in points)
        parts.append(f"<polyline points='{line}' fill='none' stroke='{colour}' stroke-width='1.6'/>")
        label = html.escape(name.replace("_", " "))
        parts.append(f"<text x='{_LEFT + 60 + number * 125}' y='{_HEIGHT - 6}' style='fill:{colour}'>{label}</text>")
    return "".join([*parts, "</svg></figure>"])


def _repairs(outcome: Outcome) -> str:
    losses = list(outcome.resent_by_loss)
    rows = [
        (cause, *(f"{outcome.resent_by_loss[loss].get(cause, 0):,}" for loss in losses), f"{count:,}")
        for cause, count in sorted(outcome.resent.items())
    ]
    return _table(("cause", *(f"at loss {loss or '?'}" for loss in losses), "packets"), rows)


def _populations(outcome: Outcome) -> list[str]:
    parts = []
    for process, found in sorted(outcome.objects.items()):
        most = sorted(found.most, key=lambda kind: -found.most[kind])[:_TYPES]
        rows = [(k, *(f"{count.get(k, 0):,}" for count in (found.before, found.most, found.after))) for k in most]
        head = ("type", "before", "most", "after")
        parts += [f"<h3>{html.escape(process)}</h3>", _table(head, rows)]
    return parts or ["<p class='soft'>Not counted in this run.</p>"]
