"""The building blocks of the report: sections, cards, tables and figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

__all__ = ["Column", "Section", "cards", "figure", "meanings_of", "pair", "table"]

_SHORT = 10  # letters; an id has eight


@dataclass(frozen=True, slots=True)
class Section:
    """A section of the report. `what` says in one line which question it answers."""

    anchor: str
    title: str
    what: str
    body: str


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table. `meaning` appears after the table's title, for readers who do not know the term."""

    title: str
    value: Callable[[Mapping[str, Any]], str]
    meaning: str = ""
    is_number: bool = True


def cards(figures: Iterable[tuple[str, str, str]]) -> str:
    """Return cards, one for each figure: its name, its value and what it means."""
    made = "".join(
        f'<div class="card"><i>{escape(name)}</i><b>{escape(number)}</b><span>{escape(what)}</span></div>'
        for name, number, what in figures
    )
    return f'<div class="cards">{made}</div>'


def table(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]], most: int = 0) -> str:
    """Return a table whose caption explains the columns; an empty text if there are no rows.

    It has the first `most` rows, if that is not 0; the caption then says of how many.
    """
    if not rows:
        return ""
    shown = rows[: most or None]
    head = "".join(f"<th{_class(one)}>{escape(one.title)}</th>" for one in columns)
    lines = "".join("<tr>" + "".join(_cell(one, one.value(row)) for one in columns) + "</tr>" for row in shown)
    notes = [f"{one.title}: {one.meaning}." for one in columns if one.meaning]
    notes += [f"The first {len(shown):,} of {len(rows):,}."] if len(shown) < len(rows) else []
    caption = f"<b>{escape(title)}</b> {escape(' '.join(notes))}"
    return f'<div class="scroll"><table><caption>{caption}</caption><tr>{head}</tr>{lines}</table></div>'


def figure(picture: str, caption: str) -> str:
    """Return a picture with its caption; an empty text if there is no picture."""
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>" if picture else ""


def pair(*figures: str) -> str:
    """Place figures side by side if there is room."""
    return f'<div class="pair">{"".join(figures)}</div>'


def meanings_of(terms: Iterable[tuple[str, str]]) -> str:
    """Return a list of terms, each with its meaning."""
    return f"<dl>{''.join(f'<dt>{escape(term)}</dt><dd>{escape(meaning)}</dd>' for term, meaning in terms)}</dl>"


def _cell(column: Column, text: str) -> str:
    return f"<td{_class(column, is_short=len(text) <= _SHORT)}>{escape(text)}</td>"


def _class(column: Column, *, is_short: bool = False) -> str:
    """Return the class of a cell: that of a number, or of a text that is one line wherever there is little room."""
    return ' class="n"' if column.is_number else ' class="s"' if is_short else ""
