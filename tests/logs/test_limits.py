"""How many lines of a log are written, by kind and source, and how the others are counted."""

import pytest

from tunnel.logs.limits import (
    BYTES_AT_ONCE,
    BYTES_PER_SECOND,
    LINES_PER_SECOND,
    LineLimits,
    Source,
    SourceKind,
    Suppressed,
)

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


def say(limits: LineLimits, now: int, size: int, about: Source | None = None) -> int:
    """Write the lines about suppressed lines, each of this size; return the bytes about one source, or all."""
    found = said(limits, now)
    for one in found:
        limits.wrote(one.source, size, now)
    return size * sum(about in (None, one.source) for one in found)


def written_bytes(limits: LineLimits, source: Source, size: int, seconds: int, *, kinds: int = 20) -> int:
    """Let a source cause as many lines of this size as pass in this time, in 20 kinds; return their bytes."""
    total = 0
    for now in range(0, seconds * SECOND, SECOND // 10):
        total += say(limits, now, size, source)
        for kind in range(kinds):
            for _ in range(12):
                if limits.passes(f"kind{kind}", source, "info", now):
                    limits.wrote(source, size, now)
                    total += size
    return total


@pytest.mark.parametrize("kind", BYTES_PER_SECOND)
@pytest.mark.parametrize("size", [200, 12_000])
def test_two_users_the_bytes_about_one_source_are_limited_in_the_long_run(kind: SourceKind, size: int) -> None:
    limits = LineLimits()
    seconds = 4 * BYTES_AT_ONCE
    total = written_bytes(limits, Source(kind, "x"), size, seconds)
    lines_at_once = 20  # about suppressed lines, one of each kind
    assert total <= BYTES_PER_SECOND[kind] * (seconds + BYTES_AT_ONCE) + size * lines_at_once
    assert limits.passes("connect", ANN, "info", seconds * SECOND)
    assert limits.suppressed


def test_two_users_unauthenticated_clients_together_have_a_limit_of_bytes() -> None:
    limits = LineLimits()
    total = 0
    for second in range(300):
        said(limits, second * SECOND)
        for number in range(30):
            source = Source(SourceKind.ADDRESS, f"{second}.{number}")
            if limits.passes("bad_request", source, "info", second * SECOND):
                limits.wrote(source, 4000, second * SECOND)
                total += 4000
    assert total <= BYTES_PER_SECOND[SourceKind.UNAUTHENTICATED] * (300 + BYTES_AT_ONCE) + 4000
    assert limits.passes("connect", EVE, "info", 300 * SECOND)


def test_two_users_an_address_whose_bytes_are_used_up_leaves_those_of_others() -> None:
    limits = LineLimits()
    for number in range(40):
        if limits.passes(f"kind{number}", X, "info", 0):
            limits.wrote(X, 4000, 0)
    assert not limits.passes("another", X, "info", 0)
    assert limits.passes("another", Y, "info", 0)
    said(limits, SECOND)
    assert Suppressed("another", UNAUTHENTICATED, "info", 1) in said(limits, 2 * SECOND)


def test_a_source_may_speak_again_when_its_rate_has_made_up_for_its_bytes() -> None:
    limits = LineLimits()
    rate = BYTES_PER_SECOND[SourceKind.USER]
    limits.wrote(EVE, rate * (BYTES_AT_ONCE + 5), 0)
    assert not limits.passes("connect", EVE, "info", 5 * SECOND)
    assert limits.passes("listen", EVE, "info", 5 * SECOND + 1)


def test_the_process_itself_has_no_limit_of_bytes() -> None:
    limits = LineLimits()
    limits.wrote(Source(SourceKind.PROCESS), 10**12, 0)
    assert limits.passes("started", Source(SourceKind.PROCESS), "info", 0)


def test_the_memory_for_the_bytes_of_sources_is_bounded() -> None:
    limits = LineLimits()
    for number in range(50_000):
        limits.wrote(Source(SourceKind.USER, str(number)), 1, number * SECOND)
    assert len(limits._volume) <= 10_000


def test_two_users_lines_about_the_suppressed_ones_of_very_many_addresses_are_limited_too() -> None:
    limits = LineLimits()
    total = 0
    addresses: list[Source] = []
    for second in range(200):
        now = second * SECOND
        total += say(limits, now, 250)
        addresses += [Source(SourceKind.ADDRESS, f"{second}.{number}") for number in range(20)]
        for source in [*addresses, *addresses]:
            if limits.passes("bad_request", source, "info", now):
                limits.wrote(source, 250, now)
                total += 250
    assert total <= BYTES_PER_SECOND[SourceKind.UNAUTHENTICATED] * (200 + BYTES_AT_ONCE) + 4000 * 250
    assert len(limits) < 100


def test_what_could_not_be_said_in_time_is_said_later() -> None:
    limits = LineLimits()
    passed(limits, "connect", EVE, 150, 0)
    limits.wrote(EVE, BYTES_PER_SECOND[SourceKind.USER] * (BYTES_AT_ONCE + 3), 0)
    passed(limits, "connect", EVE, 10, 1)
    assert said(limits, SECOND) == said(limits, 2 * SECOND) == said(limits, 3 * SECOND) == []
    assert limits.next_timeout() == 4 * SECOND
    assert said(limits, 4 * SECOND) == [Suppressed("connect", EVE, "info", 60)]
    assert said(limits, 5 * SECOND) == []
    assert (limits.suppressed, len(limits)) == (60, 0)
