"""Tables for the operator: filters, orders, pages, and what a query may say."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest

from tests.servlet.web.rig import TurnCounter
from tests.support.loops import in_loop
from tunnel_servlet.web.live.tables import ROWS_MAX, Page, Table, Wanted

ROWS = [("ann", "Web", 3), ("bob", "db", 9), ("ann", "db", 9), ("eve", "web-2", 0)]


def table(rows: list[tuple[str, str, int]] = ROWS, made: Any = None) -> Table[tuple[str, str, int], str]:
    def row(item: tuple[str, str, int]) -> str:
        if made is not None:
            made()
        return f"{item[0]}/{item[1]}"

    return Table(
        lambda: rows,
        row,
        users=lambda item: (item[0],),
        words=lambda item: f"{item[0]}\n{item[1]}",
        orders={"name": lambda item: item[1], "size": lambda item: item[2]},
    )


@pytest.mark.parametrize(
    ("query", "matched", "rows"),
    [
        ({}, 4, ["ann/Web", "bob/db", "ann/db", "eve/web-2"]),
        ({"reverse": "1"}, 4, ["eve/web-2", "ann/db", "bob/db", "ann/Web"]),
        ({"user": "ann"}, 2, ["ann/Web", "ann/db"]),
        ({"user": "an"}, 0, []),
        ({"find": "WEB"}, 2, ["ann/Web", "eve/web-2"]),
        ({"find": "b\nd"}, 1, ["bob/db"]),
        ({"sort": "size"}, 4, ["bob/db", "ann/db", "ann/Web", "eve/web-2"]),
        ({"sort": "size", "reverse": "1"}, 4, ["eve/web-2", "ann/Web", "ann/db", "bob/db"]),
        ({"sort": "name"}, 4, ["ann/Web", "bob/db", "ann/db", "eve/web-2"]),
        ({"sort": "size", "limit": "1"}, 4, ["bob/db"]),
        ({"sort": "size", "limit": "2", "offset": "1"}, 4, ["ann/db", "ann/Web"]),
        ({"limit": "0"}, 4, []),
        ({"offset": "9"}, 4, []),
    ],
    ids=str,
)
@in_loop
async def test_a_page_holds_what_is_asked_for(query: dict[str, str], matched: int, rows: list[str]) -> None:
    assert await table().page(Wanted.read(query)) == Page(4, matched, rows)


@pytest.mark.parametrize(
    ("query", "why"),
    [
        ({"limit": "-1"}, "limit is a whole number from 0 to 10000, not '-1'"),
        ({"limit": str(ROWS_MAX + 1)}, "limit is a whole number"),
        ({"limit": "\u0661"}, "limit is a whole number"),
        ({"limit": "9" * 5000}, "limit is a whole number from 0 to 10000, not '99999999999999999999'"),
        ({"offset": "1e3"}, "offset is a whole number"),
        ({"reverse": "yes"}, "reverse is a whole number from 0 to 1"),
        ({"find": "x" * 257}, "more than 256 letters"),
        ({"fnid": "x"}, "'fnid' is not known: the query may have user, find, sort, reverse, offset, limit"),
    ],
    ids=str,
)
def test_a_query_that_is_not_understood_is_explained(query: dict[str, str], why: str) -> None:
    with pytest.raises(ValueError, match=re.escape(why)):
        Wanted.read(query)


@in_loop
async def test_an_unknown_order_is_explained() -> None:
    with pytest.raises(ValueError, match="cannot sort by 'colour': sort is one of name, size"):
        await table().page(Wanted(sort="colour"))


@in_loop
async def test_two_users_a_large_table_takes_its_time_in_slices() -> None:
    """The streams of users go on between two slices. Rows are made only for those that are shown."""
    counter = TurnCounter()
    rows = [("ann", str(number), number) for number in range(2600)]
    page = await table(rows, counter.note).page(Wanted(limit=2600))
    assert (len(page.rows), page.matched) == (2600, 2600)
    assert counter.stop() <= 500
    shown = TurnCounter()
    await table(rows, shown.note).page(Wanted(sort="size", limit=3))
    assert shown.stop() == 3


@in_loop
async def test_what_comes_while_a_page_is_made_does_not_disturb_it() -> None:
    rows = [("ann", str(number), number) for number in range(1200)]
    listed = list(rows)
    made = Table(
        lambda: list(listed),
        lambda item: item[2],
        users=lambda item: (item[0],),
        words=lambda item: item[1],
        orders={},
    )
    page = asyncio.ensure_future(made.page(Wanted(limit=2000)))
    await asyncio.sleep(0)
    listed.clear()
    assert (await page).rows == list(range(1200))
