"""The building blocks of the report: sections, cards, tables and figures."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

__all__ = ["Column", "Section", "cards", "figure", "pair", "table"]


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


def table(title: str, columns: Sequence[Column], rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a table whose caption explains the columns; an empty text if there are no rows."""
    if not rows:
        return ""
    head = "".join(f"<th{_number(one)}>{escape(one.title)}</th>" for one in columns)
    lines = "".join(
        "<tr>" + "".join(f"<td{_number(one)}>{escape(one.value(row))}</td>" for one in columns) + "</tr>"
        for row in rows
    )
    meanings = " ".join(f"{one.title}: {one.meaning}." for one in columns if one.meaning)
    caption = f"<b>{escape(title)}</b> {escape(meanings)}"
    return f'<div class="scroll"><table><caption>{caption}</caption><tr>{head}</tr>{lines}</table></div>'


def figure(picture: str, caption: str) -> str:
    """Return a picture with its caption; an empty text if there is no picture."""
    return f"<figure>{picture}<figcaption>{escape(caption)}</figcaption></figure>" if picture else ""


def pair(*figures: str) -> str:
    """Place figures side by side if there is room."""
    return f'<div class="pair">{"".join(figures)}</div>'


def _number(column: Column) -> str:
    return ' class="n"' if column.is_number else ""
