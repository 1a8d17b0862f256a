"""Reading the audit: what a query finds, in all files, and what it says about what is not there."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from tunnel_servlet.audit.event import AuditEvent, Kind, encode_event
from tunnel_servlet.audit.reading import REFUSALS, Events, Query, Usage, totals_of, when

NOW = datetime(2026, 11, 29, 16, 30, tzinfo=UTC)


def event(number: int, kind: Kind = Kind.CONNECTION_ALLOWED, **fields: Any) -> AuditEvent:
    time = f"2026-11-29T16:00:{number:02d}.000000Z"
    return AuditEvent(**{"event": kind, "time": time, "run": "a", "number": number, "user": "ann", **fields})


def written(path: Path, *some: AuditEvent) -> None:
    path.write_bytes(b"".join(map(encode_event, some)))


def numbers(path: Path, query: Query | None = None) -> list[int]:
    return [found.number for found in Events(path, query or Query())]


def test_rotated_files_come_first_in_the_order_of_their_times(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, event(5))
    written(tmp_path / "audit.jsonl.20261129T160002.000000Z", event(1), event(2))
    written(tmp_path / "audit.jsonl.20261129T160004.000000Z", event(3), event(4))
    assert numbers(path) == [1, 2, 3, 4, 5]
    assert numbers(path, Query(since="2026-11-29T16:00:03.000000Z")) == [3, 4, 5]
    assert numbers(path, Query(until="2026-11-29T16:00:03.000000Z")) == [1, 2]
    path.unlink()
    assert numbers(path) == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("query", "found"),
    [
        (Query(user="ann"), [1, 4]),
        (Query(user="bob"), [2, 3]),
        (Query(kinds=REFUSALS), [2, 4]),
        (Query(kinds=frozenset({Kind.CONNECTION_ALLOWED})), [1, 3]),
        (Query(target="db.internal:5432"), [1]),
        (Query(target="db.internal"), [1, 4]),
        (Query(target="reports"), [3]),
        (Query(user="ann", kinds=REFUSALS), [4]),
    ],
)
def test_a_query_finds_what_it_asks_for(tmp_path: Path, query: Query, found: Sequence[int]) -> None:
    written(
        path := tmp_path / "audit.jsonl",
        event(1, target="db.internal:5432"),
        event(2, Kind.CONNECTION_REFUSED, user="bob", target="web:80"),
        event(3, user="relay:public", owner="bob", service="reports"),
        event(4, Kind.CONNECTION_REFUSED, target="db.internal:22"),
    )
    assert numbers(path, query) == found


def test_lines_that_are_no_events_are_counted_and_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, event(1))
    with path.open("ab") as file:
        file.write(b'{"event":"conn\n\n' + encode_event(event(2)) + b"\xff\xfe\n")
    events = Events(path, Query())
    assert [one.number for one in events] == [1, 2]
    assert events.unreadable == 2


def test_events_that_are_missing_between_others_are_counted_by_run(tmp_path: Path) -> None:
    path = tmp_path / "audit.jsonl"
    written(path, event(2), event(6), event(5), event(9, run="b"), event(10, run="b"))
    events = Events(path, Query(user="nobody"))
    assert list(events) == []
    assert events.missing == 2


def test_sums_are_by_user_by_rule_and_by_refused_target() -> None:
    found = totals_of(
        [
            event(1, rule="db:5432"),
            event(2, Kind.CONNECTION_ENDED, sent_bytes=10, received_bytes=20, seconds=1.5),
            event(3, Kind.CONNECTION_REFUSED, target="web:80", reason="denied"),
            event(4, user="relay:public", owner="bob", rule="public"),
            event(5, Kind.EVENTS_SUMMED, counts={"connection_refused denied": 7, "endpoint_attached": 3}),
            event(6, Kind.ADMIN, user=""),
        ]
    )
    ann = Usage("ann", connections=1, refused=8, sent_bytes=10, received_bytes=20, seconds=1.5)
    assert found.users == [ann, Usage("bob", connections=1)]
    assert found.rules == [("db:5432", 1), ("public", 1)]
    assert found.refused == [("web:80 denied", 1)]


def test_two_users_names_that_one_makes_up_take_no_endless_memory() -> None:
    events = (event(1, Kind.CONNECTION_REFUSED, target=f"x{number}:1", reason="denied") for number in range(10_100))
    found = totals_of(events)
    assert len(found.refused) == 10_001
    assert found.refused[0] == ("(others)", 100)


@pytest.mark.parametrize(
    ("text", "time"),
    [
        ("90s", "2026-11-29T16:28:30.000000Z"),
        ("30m", "2026-11-29T16:00:00.000000Z"),
        ("1h", "2026-11-29T15:30:00.000000Z"),
        ("2d", "2026-11-27T16:30:00.000000Z"),
        ("2026-11-29", "2026-11-29T00:00:00.000000Z"),
        ("2026-11-29T17:00+01:00", "2026-11-29T16:00:00.000000Z"),
    ],
)
def test_times_are_spans_or_dates(text: str, time: str) -> None:
    assert when(text, NOW) == time


@pytest.mark.parametrize("text", ["h", "-1h", "1w", "yesterday", "1.5h", ""])
def test_a_text_that_is_no_time_is_an_error_that_shows_one(text: str) -> None:
    with pytest.raises(ValueError, match="is no time: write 90s"):
        when(text, NOW)
