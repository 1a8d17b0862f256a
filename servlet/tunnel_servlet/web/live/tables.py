"""Tables for the operator: filtered, sorted and cut to a page, in slices, so that no other work waits for them."""

import asyncio
from collections.abc import Callable, Mapping
from heapq import nlargest, nsmallest
from typing import Any, Generic, TypeAlias, TypeVar

import msgspec

__all__ = ["ROWS_MAX", "Order", "Page", "Table", "Wanted"]

ROWS_MAX = 10_000  # of one page: 3 MB of JSON
_ROWS = 100
_OFFSET_MAX = 1_000_000
_LETTERS_MAX = 256  # of a text to look for
_SLICE = 500  # rows that are looked at, or made, in one turn of the event loop: 1 to 3 ms
_Item = TypeVar("_Item")
_Row = TypeVar("_Row")
Order: TypeAlias = Callable[[_Item], int | str]


class Wanted(msgspec.Struct, frozen=True):
    """Which rows of a table are wanted. The query of a URL says it in the same words."""

    user: str = ""  # a user that has to do with the row
    find: str = ""  # a text in one of its names, in any case
    sort: str = ""  # empty: as they began
    reverse: bool = False
    offset: int = 0
    limit: int = _ROWS

    @classmethod
    def read(cls, query: Mapping[str, str]) -> "Wanted":
        """Read the query of a URL. Raise ValueError for anything that is not understood."""
        unknown = [name for name in query if name not in cls.__struct_fields__]
        if unknown:
            raise ValueError(f"{unknown[0]!r} is not known: the query may have {', '.join(cls.__struct_fields__)}")
        texts = {name: query.get(name, "") for name in ("user", "find", "sort")}
        if max(map(len, texts.values())) > _LETTERS_MAX:
            raise ValueError(f"a text in the query has more than {_LETTERS_MAX} letters")
        offset = _number("offset", query.get("offset", "0"), _OFFSET_MAX)
        limit = _number("limit", query.get("limit", str(_ROWS)), ROWS_MAX)
        reverse = _number("reverse", query.get("reverse", "0"), 1)
        return cls(**texts, reverse=bool(reverse), offset=offset, limit=limit)


class Page(msgspec.Struct, Generic[_Row], frozen=True):
    """A part of a table. `matched`: the rows that the query covers, of `total`."""

    total: int
    matched: int
    rows: list[_Row]


class Table(Generic[_Item, _Row]):
    """One table. Items are what the switch has; a row is made only for items that are shown.

    `orders` holds what to sort by; numbers come with the largest first, texts in alphabetical order.
    """

    def __init__(
        self,
        items: Callable[[], list[_Item]],
        row: Callable[[_Item], _Row],
        *,
        users: Callable[[_Item], tuple[str, ...]],
        words: Callable[[_Item], str],
        orders: Mapping[str, Order[_Item]],
    ) -> None:
        self._items = items
        self._row = row
        self._users = users
        self._words = words
        self._orders = orders

    async def page(self, wanted: Wanted) -> Page[_Row]:
        """Return the wanted part. Raise ValueError if the table is not sorted by that."""
        if wanted.sort and wanted.sort not in self._orders:
            raise ValueError(f"cannot sort by {wanted.sort!r}: sort is one of {', '.join(self._orders)}")
        order = self._orders.get(wanted.sort)
        items = self._items()
        found: list[tuple[int | str, int, _Item]] = []
        for first in range(0, len(items), _SLICE):
            if first:
                await asyncio.sleep(0)
            for place, item in enumerate(items[first : first + _SLICE], first):
                if self._is_wanted(item, wanted):
                    found.append((0 if order is None else _ascending(order(item)), place, item))
        choose = nlargest if wanted.reverse else nsmallest
        shown = choose(wanted.offset + wanted.limit, found, key=_place)[wanted.offset :]
        rows = []
        for place, (_, _, item) in enumerate(shown):
            if place % _SLICE == _SLICE - 1:
                await asyncio.sleep(0)
            rows.append(self._row(item))
        return Page(len(items), len(found), rows)

    def _is_wanted(self, item: _Item, wanted: Wanted) -> bool:
        if wanted.user and wanted.user not in self._users(item):
            return False
        return not wanted.find or wanted.find.casefold() in self._words(item).casefold()


def _ascending(value: int | str) -> int | str:
    return value if isinstance(value, str) else -value


def _place(found: tuple[Any, ...]) -> tuple[int | str, int]:
    return found[0], found[1]


def _number(name: str, text: str, most: int) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) <= most):
        raise ValueError(f"{name} is a whole number from 0 to {most}, not {text[:20]!r}")
    return int(text)
