"""The report: one self-contained HTML file."""

from html import escape

from tunnel.analysis.page import pieces, sections
from tunnel.analysis.page.figures import key_figures
from tunnel.analysis.page.style import STYLE
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.verdict import verdict
from tunnel.analysis.words import count, duration, wall_time

__all__ = ["render"]


def render(of: Analysis, title: str) -> str:
    """Return the whole page as HTML."""
    shown = [section for section in (make(of) for make in sections.ALL) if section is not None]
    links = "".join(f'<a href="#{one.anchor}">{escape(one.title)}</a>' for one in shown)
    sentences = "".join(f"<p>{escape(text)}</p>" for text in verdict(of))
    events = sum(row["events"] for row in of.files)
    span = duration(of.end_us - of.begin_us)
    since = "" if of.wall_us is None else f" from {wall_time(of.wall_us + of.begin_us)}"
    nodes = (
        f"{count(events)} events over {span}{since}; writers: {count(len(of.writers))}, files: {count(len(of.files))}"
    )
    computed = f" Computed by {of.engine}." if of.engine else ""
    body = "".join(
        f'<section id="{one.anchor}"><h2>{escape(one.title)}</h2>'
        f'<p class="what">{escape(one.what)}</p>{one.body}</section>'
        for one in shown
    )
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{STYLE}</style></head><body><main>"
        f'<h1>{escape(title)}</h1><p class="sub">{escape(nodes)}.{escape(computed)}</p><nav>{links}</nav>'
        f'<div class="verdict">{sentences}</div>{pieces.cards(key_figures(of))}{body}'
        "</main></body></html>\n"
    )
