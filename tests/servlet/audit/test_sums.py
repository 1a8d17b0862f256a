"""One user's events beyond a limit are counted instead of written; what others do stays in single events."""

from __future__ import annotations

from tunnel_servlet.audit.event import Kind
from tunnel_servlet.audit.sums import ALWAYS_SINGLE, NOBODY, Sums

REFUSED = Kind.CONNECTION_REFUSED
MINUTE = 60_000_000


def admitted(sums: Sums, user: str, count: int, now: int = 0, kind: Kind = REFUSED, reason: str = "denied") -> int:
    return sum(sums.admits(user, kind, reason, now) for _ in range(count))


def test_two_users_the_flood_of_one_leaves_the_events_of_the_other_single() -> None:
    sums = Sums(10)
    assert admitted(sums, "ann", 1000) == 10
    assert admitted(sums, "bob", 10) == 10
    assert sums.summed == 990
    ((user, found),) = sums.take(MINUTE)
    assert (user, found.since_us, found.counts) == ("ann", 0, {"connection_refused denied": 990})


def test_what_was_counted_is_told_by_kind_and_reason_when_the_minute_is_over() -> None:
    sums = Sums(1)
    admitted(sums, "ann", 3, 7 * MINUTE, reason="busy")
    admitted(sums, "ann", 2, 7 * MINUTE, kind=Kind.ENDPOINT_ATTACHED, reason="")
    assert sums.is_counting
    assert sums.take(8 * MINUTE - 1) == []
    ((_, found),) = sums.take(8 * MINUTE)
    assert found.counts == {"connection_refused busy": 2, "endpoint_attached": 2}
    assert not sums.is_counting
    assert admitted(sums, "ann", 2, 8 * MINUTE) == 1


def test_at_the_end_what_was_counted_is_told_at_once() -> None:
    sums = Sums(1)
    admitted(sums, "ann", 2)
    assert [found.counts for _, found in sums.take(1, is_end=True)] == [{"connection_refused denied": 1}]


def test_who_stays_within_the_limit_begins_anew_each_minute() -> None:
    sums = Sums(2)
    assert [admitted(sums, "ann", 2, minute * MINUTE) for minute in range(3)] == [2, 2, 2]
    assert sums.summed == 0


def test_connections_that_were_opened_are_never_counted_instead() -> None:
    sums = Sums(1)
    for kind in (Kind.CONNECTION_ALLOWED, Kind.CONNECTION_ENDED, Kind.TOKEN_REVOKED, Kind.RULES_CHANGED, Kind.ADMIN):
        assert kind in ALWAYS_SINGLE
        assert admitted(sums, "ann", 5, kind=kind) == 5


def test_of_what_anybody_may_cause_no_kind_is_always_single() -> None:
    for kind in Kind:
        assert admitted(Sums(2), NOBODY, 5, kind=kind) == 2
