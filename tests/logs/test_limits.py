"""How many lines of a log are written, by kind and source, and how the others are counted."""

import pytest

from tunnel.logs.limits import LINES_PER_SECOND, LineLimits, Source, SourceKind, Suppressed

SECOND = 1_000_000
EVE, ANN = (Source(SourceKind.USER, name) for name in ("eve", "ann"))
X, Y = (Source(SourceKind.ADDRESS, name) for name in ("192.0.2.1", "192.0.2.2"))
UNAUTHENTICATED = Source(SourceKind.UNAUTHENTICATED)


def passed(limits: LineLimits, kind: str, source: Source, count: int, now: int) -> int:
    return sum(limits.passes(kind, source, "info", now) for _ in range(count))


def said(limits: LineLimits, now: int) -> list[Suppressed]:
    found = []
    while (one := limits.poll_suppressed(now)) is not None:
        found.append(one)
    return found


@pytest.mark.parametrize("kind", [kind for kind in SourceKind if kind is not SourceKind.UNAUTHENTICATED])
def test_each_kind_of_source_has_its_limit(kind: SourceKind) -> None:
    assert passed(LineLimits(), "a", Source(kind, "x"), 300, 0) == LINES_PER_SECOND[kind]


def test_two_users_lines_about_one_do_not_silence_another() -> None:
    limits = LineLimits()
    assert passed(limits, "connect", EVE, 5000, 0) == 100
    assert passed(limits, "connect", ANN, 100, 1) == 100
    assert passed(limits, "listen", EVE, 100, 1) == 100
    assert limits.suppressed == 4900


def test_two_addresses_have_a_line_each() -> None:
    limits = LineLimits()
    assert passed(limits, "bad_request", X, 5000, 0) == 1
    assert passed(limits, "bad_request", Y, 5000, 1) == 1
    assert passed(limits, "wrong_token", X, 5000, 1) == 1


def test_suppressed_lines_are_said_once_when_their_second_ends() -> None:
    limits = LineLimits()
    assert limits.next_timeout() is None
    limits.passes("connect", ANN, "info", 5)
    assert limits.next_timeout() is None  # nothing to say
    passed(limits, "connect", EVE, 150, 10)
    limits.passes("connect", EVE, "warning", 11)
    assert (
        limits.next_timeout() == 5 + SECOND
    )  # the second of ann's lines ends first, although none of them was suppressed
    assert said(limits, 9 + SECOND) == []
    assert limits.next_timeout() == 10 + SECOND
    assert said(limits, 10 + SECOND) == [Suppressed("connect", EVE, "warning", 51)]
    assert said(limits, 10 + 2 * SECOND) == []
    assert (limits.next_timeout(), len(limits)) == (None, 0)


def test_the_line_about_suppressed_lines_uses_up_one_line_of_the_next_second() -> None:
    limits = LineLimits()
    lines = 0
    for now in range(0, 10 * SECOND, SECOND // 100):
        lines += len(said(limits, now)) + passed(limits, "bad_request", X, 3, now)
    assert lines == 10
    assert said(limits, 10 * SECOND) == [Suppressed("bad_request", X, "info", 300)]


def test_unauthenticated_clients_with_very_many_addresses_share_a_limit() -> None:
    limits = LineLimits()
    sources = [Source(SourceKind.ADDRESS, str(number)) for number in range(30_000)]
    assert sum(limits.passes("bad_request", source, "info", 0) for source in sources) == 20
    assert len(limits) == 21  # sources whose lines do not pass are not remembered
    assert said(limits, SECOND) == [Suppressed("bad_request", UNAUTHENTICATED, "info", 29_980)]
    assert passed(limits, "connect", ANN, 100, 0) == 100


def test_one_unauthenticated_client_does_not_use_up_the_lines_of_all() -> None:
    limits = LineLimits()
    assert passed(limits, "bad_request", X, 5000, 0) == 1
    assert passed(limits, "bad_request", Y, 1, 0) == 1
    assert [one.source for one in said(limits, SECOND)] == [X]


def test_the_memory_for_sources_is_bounded() -> None:
    limits = LineLimits()
    users = [Source(SourceKind.USER, str(number)) for number in range(10_001)]
    assert sum(limits.passes("connect", user, "info", 0) for user in users) == 10_000
    assert (len(limits), limits.suppressed) == (10_000, 1)
    assert said(limits, SECOND) == []
    assert limits.passes("connect", users[-1], "info", SECOND)
    assert len(limits) == 1
