"""The families that are blamed for limited goodput, on analyses made by hand.

The tests show how time is divided among the families, and which evidence moves it to another family. The rules are
those of the table in docs/ANALYSIS.md.
"""

from typing import Any

import pytest

from tunnel.analysis.results.limits import LIMITS
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import (
    Blame,
    Place,
    Trouble,
    blames,
    explained_us,
    failing_relay,
    life_us,
    main_place,
    mean_body_bytes,
    trouble_of,
)
from tunnel.analysis.verdicts.families import FAMILIES, OF_LIMIT, OF_STALL

EXPLANATIONS = {"bodies"}  # families that only explain the time of others
STALL_OF = {family: why for why, family in OF_STALL.items()}
WINDOW = 128 * 1024


def totals(**changes: int) -> dict[str, int]:
    return {"packets": 1000, "unique_packets": 1000, "judged": 1000, "lost": 0, **changes}


def stall(why: str, us: int) -> dict[str, Any]:
    return {"why": why, "us": us, "stalls": 1}


def exchange(event: str, n: int, status: int = 0) -> dict[str, Any]:
    return {"kind": "push", "event": f"exchange_{event}", "status": status, "n": n}


def refusals(n: int, status: int = 503, requests: int = 100) -> list[dict[str, Any]]:
    return [exchange("sent", requests - n), exchange("repeated", n), exchange("answered", n, status)]


def unanswered(n: int, requests: int = 100) -> list[dict[str, Any]]:
    return [exchange("sent", requests - n), exchange("repeated", n)]


def trips(least_us: int, median_us: int) -> dict[str, Any]:
    return {"us_min": least_us, "us": [median_us, 9 * median_us, 99 * median_us]}


def family_of(family: str, granted_most: int | None = None, **evidence: Any) -> str:
    """Return the family that is blamed for a stall that belongs to `family` by itself, given the evidence."""
    facts: dict[str, Any] = {"totals": totals(), **evidence}
    of = Analysis(stalls=[stall(STALL_OF[family], 5)], limits={"granted_most": granted_most}, **facts)
    (blame,) = blames(of)
    assert (blame.us, blame.stalled_us) == (5, 5)
    return blame.family


def moved(**evidence: Any) -> dict[str, str]:
    """Return, for each family whose time the evidence moves, the family to which it moves."""
    return {family: found for family in STALL_OF if (found := family_of(family, **evidence)) != family}


# the sums


def test_every_limit_and_every_stall_counts_for_its_family() -> None:
    limits = {name: 10**at for at, name in enumerate(LIMITS)}
    stalls = [stall(why, 10 ** (len(LIMITS) + at)) for at, why in enumerate(OF_STALL)]
    of = Analysis(totals=totals(), limits=limits, stalls=stalls)
    expected = dict.fromkeys(FAMILIES.keys() - EXPLANATIONS, 0)
    for name, us in limits.items():
        expected[OF_LIMIT[name]] += us
    for row in stalls:
        expected[OF_STALL[row["why"]]] += row["us"]
    assert {blame.family: blame.us for blame in blames(of)} == expected
    assert explained_us(of) == sum(expected.values())


def test_only_the_time_in_stalls_counts_as_stalled() -> None:
    of = Analysis(totals=totals(), limits={"carrier_full": 7}, stalls=[stall("carrier_busy", 2), stall("loop_lag", 1)])
    assert blames(of) == [Blame("rate", 9, 2), Blame("loop", 1, 1)]


def test_the_family_that_took_most_time_comes_first_and_equal_ones_are_sorted_by_name() -> None:
    stalls = [stall("loop_lag", 2), stall("carrier_tcp", 3), stall("connecting", 2), stall("no_answer", 1)]
    found = blames(Analysis(totals=totals(), stalls=stalls))
    assert [blame.family for blame in found] == ["tcp", "connecting", "loop", "silence"]


def test_four_classes_of_loss_are_one_cause() -> None:
    whys = ("loss", "double_retransmission", "tail_retransmission", "ack_delay_or_loss")
    of = Analysis(totals=totals(), stalls=[stall("packet_delay", 300), *(stall(why, 100) for why in whys)])
    assert blames(of) == [Blame("loss", 400, 400), Blame("delay", 300, 300)]


def test_a_trace_without_a_sender_has_no_cause() -> None:
    of = Analysis(totals=totals(), limits={**dict.fromkeys(LIMITS, 0), "granted_most": WINDOW})
    assert (blames(of), explained_us(of)) == ([], 0)
    assert (blames(Analysis()), explained_us(Analysis())) == ([], 0)


# the application that writes slowly


@pytest.mark.parametrize(
    ("limits", "found"),
    [
        ({"awaiting": 10}, [Blame("delay", 10, 0)]),
        ({"awaiting": 10, "idle": 4}, [Blame("delay", 10, 0), Blame("writer", 4, 0)]),
        ({"awaiting": 10, "all_sent": 4}, [Blame("delay", 10, 0), Blame("writer", 4, 0)]),
        ({"awaiting": 10, "all_sent": 2, "idle": 2, "ending": 9}, [Blame("delay", 19, 0), Blame("writer", 4, 0)]),
        ({"awaiting": 10, "idle": 5}, [Blame("writer", 15, 0)]),
        ({"awaiting": 10, "all_sent": 5}, [Blame("writer", 15, 0)]),
        ({"awaiting": 10, "all_sent": 2, "idle": 3}, [Blame("writer", 15, 0)]),
    ],
)
def test_awaiting_counts_for_the_writer_if_its_pauses_take_at_least_half_as_long(
    limits: dict[str, int], found: list[Blame]
) -> None:
    assert blames(Analysis(totals=totals(), limits=limits)) == found


def test_the_end_of_a_stream_is_never_the_writers_time() -> None:
    of = Analysis(totals=totals(), limits={"ending": 3, "idle": 9})
    assert blames(of) == [Blame("writer", 9, 0), Blame("delay", 3, 0)]


# the rules


def test_without_evidence_no_time_belongs_to_another_family() -> None:
    assert moved() == {}
    assert moved(exchanges=refusals(1), trips=trips(1_000, 2_000), granted_most=WINDOW - 1) == {}


@pytest.mark.parametrize(
    ("least_us", "median_us", "families"),
    [
        (125_000, 500_000, {"http": "rate", "delay": "rate", "loss": "rate"}),
        (1, 200_000, {"http": "rate", "delay": "rate", "loss": "rate"}),
        (1, 199_999, {}),
        (125_001, 500_000, {}),
        (250_000, 500_000, {"rate": "delay"}),
        (50_000, 100_000, {"rate": "delay"}),
        (50_000, 100_001, {}),
        (49_999, 50_000, {}),
    ],
)
def test_round_trips_tell_a_narrow_path_from_a_long_one(
    least_us: int, median_us: int, families: dict[str, str]
) -> None:
    """On a narrow path, packets queue: the median is far above the shortest. On a long path, the two are close."""
    assert moved(trips=trips(least_us, median_us)) == families


def test_a_queue_that_is_shorter_than_every_deadline_explains_no_failure() -> None:
    """500 ms is the shortest deadline of a request."""
    assert moved(trips={"us_min": 1, "us": [300_000, 499_999, None]}) == {}
    assert moved(trips={"us_min": 1, "us": [300_000, 500_000, None]})["http"] == "rate"


def test_without_round_trips_no_path_counts_as_narrow_or_long() -> None:
    assert moved(trips={"samples": 0, "us_min": None, "us": None}) == {}


def test_late_answers_are_blamed_on_a_narrow_path() -> None:
    found = moved(trips=trips(1_000, 600_000), exchanges=unanswered(90))
    assert found == {"http": "rate", "delay": "rate", "loss": "rate", "polls": "http"}


@pytest.mark.parametrize("exchanges", [refusals(90), [exchange("sent", 100), exchange("failed", 90)]])
def test_other_failures_are_not_blamed_on_a_narrow_path(exchanges: list[dict[str, Any]]) -> None:
    assert moved(trips=trips(1_000, 600_000), exchanges=exchanges) == HTTP


HTTP = {"rate": "http", "delay": "http", "polls": "http", "loss": "http"}


@pytest.mark.parametrize(
    "evidence",
    [
        {"exchanges": refusals(2)},
        {"exchanges": unanswered(2)},
        {"exchanges": [exchange("sent", 98), exchange("failed", 2)] * 2},
        {"exchanges": refusals(1, status=413, requests=1000)},
        {"absences": 1},
    ],
)
def test_failures_on_the_http_path_explain_a_slow_carrier_and_late_acknowledgements(
    evidence: dict[str, Any],
) -> None:
    assert moved(**evidence) == HTTP


def test_a_few_failed_requests_explain_nothing() -> None:
    assert moved(exchanges=refusals(1, requests=51)) == {}
    assert moved(exchanges=refusals(1, requests=50)) == HTTP


@pytest.mark.parametrize("losses", [totals(lost=10), totals(lost=0, judged=0, unique_packets=990)])
def test_losses_stay_losses_beside_failed_requests(losses: dict[str, int]) -> None:
    assert moved(totals=losses, absences=1) == {"rate": "http", "delay": "http", "polls": "http"}


LOSS = {"rate": "loss", "delay": "loss"}


@pytest.mark.parametrize(
    ("changes", "families"),
    [
        ({"lost": 10}, LOSS),
        ({"lost": 9}, {}),
        ({"lost": 5, "judged": 500}, LOSS),
        ({"lost": 4, "judged": 4}, {}),  # it may be an accident
        # repeats show losses only if no receiver was traced
        ({"judged": 0, "unique_packets": 990}, LOSS),
        ({"judged": 0, "unique_packets": 991}, {}),
        ({"judged": 0, "packets": 8, "unique_packets": 4}, {}),
        ({"judged": 1, "unique_packets": 500}, {}),
    ],
)
def test_one_loss_in_a_hundred_transmissions_explains_a_slow_path(
    changes: dict[str, int], families: dict[str, str]
) -> None:
    assert moved(totals=totals(**changes)) == families


def test_losses_take_precedence_over_the_length_of_the_path() -> None:
    assert moved(totals=totals(lost=10), trips=trips(60_000, 60_000)) == LOSS


@pytest.mark.parametrize(
    ("evidence", "family"),
    [
        ({}, "rate"),
        ({"trips": trips(60_000, 60_000)}, "delay"),
        ({"trips": trips(60_000, 60_000), "totals": totals(lost=10)}, "loss"),
        ({"totals": totals(judged=0, unique_packets=990)}, "loss"),
        ({"absences": 1}, "rate"),
    ],
)
def test_a_large_window_that_is_full_shows_a_slow_path(evidence: dict[str, Any], family: str) -> None:
    assert family_of("window", granted_most=WINDOW, **evidence) == family
    assert family_of("window", granted_most=WINDOW - 1, **evidence) == "window"
    assert family_of("window", **evidence) == "window"


# a path with small bodies


def pushes(n: int, size_bytes: int) -> list[dict[str, Any]]:
    return [exchange("sent", n) | {"bytes": n * size_bytes}, {**exchange("sent", 1), "kind": "pull", "bytes": 10**9}]


@pytest.mark.parametrize(
    ("least_us", "body_bytes", "family"),
    [
        (50_000, 32 * 1024, "bodies"),
        (50_000, 32 * 1024 + 1, "delay"),
        (49_000, 32 * 1024, "rate"),
    ],
)
def test_requests_that_carry_little_over_a_long_path_are_the_cause(least_us: int, body_bytes: int, family: str) -> None:
    evidence: dict[str, Any] = {"trips": trips(least_us, least_us), "exchanges": pushes(100, body_bytes)}
    assert family_of("rate", **evidence) == family
    assert family_of("delay", **evidence) == "delay"  # the application waited for an answer, and not for the carrier


def test_small_bodies_explain_nothing_if_requests_failed_for_another_reason_than_their_size() -> None:
    far: dict[str, Any] = {"trips": trips(60_000, 60_000)}
    assert family_of("rate", exchanges=[*pushes(100, 900), exchange("answered", 5, 413)], **far) == "bodies"
    assert family_of("rate", exchanges=[*pushes(100, 900), exchange("answered", 1, 503)], **far) == "bodies"
    assert family_of("rate", exchanges=[*pushes(100, 900), exchange("answered", 3, 503)], **far) == "http"
    assert family_of("rate", exchanges=pushes(100, 900), absences=1, **far) == "http"


def test_a_link_has_no_bodies() -> None:
    assert mean_body_bytes(Analysis(exchanges=[{**exchange("sent", 1), "kind": "attach", "bytes": 9}])) is None
    assert mean_body_bytes(Analysis(exchanges=[*pushes(3, 10), exchange("repeated", 1) | {"bytes": 30}])) == 15.0


# the reader


def unread(*, is_main: bool = True, **us: int) -> list[dict[str, Any]]:
    """`whole`, and what the sender did meanwhile, by its name in LIMITS or STALLS."""
    of = {"whole": "whole"} | dict.fromkeys(LIMITS, "limit")
    return [
        {"of": of.get(name, "stall"), "name": name, "is_main": is_main, "us": time_us} for name, time_us in us.items()
    ]


def test_while_bytes_wait_for_the_application_nothing_else_is_the_cause() -> None:
    of = Analysis(
        totals=totals(),
        limits={"carrier_full": 10, "idle": 20},
        stalls=[stall("loss", 30)],
        life={"us": 200},
        unread=unread(whole=100, carrier_full=10, idle=5, loss=20),
    )
    assert blames(of) == [Blame("reader", 100, 20), Blame("writer", 15, 0), Blame("loss", 10, 10)]
    assert (explained_us(of), life_us(of)) == (125, 200)


def test_a_stream_that_carries_little_lives_while_it_is_busy_or_read() -> None:
    little, much = unread(is_main=False, whole=100, loss=30), unread(whole=50, carrier_full=10)
    of = Analysis(
        totals=totals(), limits={"carrier_full": 10}, stalls=[stall("loss", 30)], life={"us": 200}, unread=little + much
    )
    assert life_us(of) == 270
    assert blames(of) == [Blame("reader", 150, 30)]


@pytest.mark.parametrize("why", ["loop_lag", "peer_loop_lag", "relay_loop_lag", "connecting"])
def test_a_process_that_stood_still_is_not_a_slow_reader(why: str) -> None:
    of = Analysis(
        totals=totals(),
        stalls=[stall(why, 30)],
        unread=[*unread(whole=40), {"of": "stall", "name": why, "is_main": True, "us": 25}],
    )
    assert blames(of) == [Blame(OF_STALL[why], 30, 30), Blame("reader", 15, 0)]
    assert explained_us(of) == 45


def test_a_connection_is_not_read_before_it_is_accepted() -> None:
    of = Analysis(totals=totals(), limits={"connecting": 30}, unread=unread(whole=40, connecting=25))
    assert blames(of) == [Blame("connecting", 30, 0), Blame("reader", 15, 0)]


def test_the_round_trip_of_connect_is_the_paths_and_not_the_targets() -> None:
    of = Analysis(
        totals=totals(),
        limits={"connecting": 100},
        stalls=[stall("connecting", 1_000)],
        life={"us": 1_100, "asked_us": 90, "asked_stalled_us": 5},
    )
    assert blames(of) == [Blame("connecting", 1_005, 995), Blame("delay", 95, 5)]
    assert explained_us(of) == 1_100


# places


def place(side: str, where: str, us: int, name: str = "loss", of: str = "stall") -> dict[str, Any]:
    return {"side": side, "place": where, "of": of, "name": name, "us": us}


def test_the_sender_that_lost_most_time_is_named() -> None:
    places = [place("sender", "a", 5), place("sender", "b", 15), place("sender", "a", 99, name="loop_lag")]
    of = Analysis(totals=totals(), places=[*places, place("receiver", "c-1-00000000", 20)])
    assert main_place(of, "loss") == Place("sender", "b", 0.75, 2)
    assert main_place(of, "loop") == Place("sender", "a", 1.0, 1)
    assert main_place(of, "edge") is None


def test_a_reader_is_named_by_its_process() -> None:
    places = [
        place("receiver", "slow-17-89abcdef", 30, name="", of="unread"),
        place("receiver", "quick-18-89abcdef", 10, name="flow_control_peer"),
        place("sender", "a", 40, name="flow_control_peer"),
    ]
    assert main_place(Analysis(totals=totals(), places=places), "reader") == Place("receiver", "slow-17", 0.75, 2)


def test_time_that_the_http_path_took_is_told_by_relay() -> None:
    places = [place("relay", name, us, name="carrier_http") for name, us in (("one", 3), ("two", 7))]
    assert main_place(Analysis(totals=totals(), places=places), "http") == Place("relay", "two", 0.7, 2)
    places = [place("sender", "a", 3, name="carrier_http")]
    assert main_place(Analysis(totals=totals(), places=places), "http") is None  # no attachment was traced


def test_the_relay_at_which_requests_failed_is_known_if_there_are_several() -> None:
    refusals = [
        {"relay": relay, "event": f"exchange_{event}", "status": status, "n": n}
        for relay, event, status, n in (
            ("one", "sent", 0, 100), ("one", "answered", 502, 3),
            ("two", "sent", 0, 20), ("two", "failed", 0, 2), ("two", "repeated", 0, 2),
        )
    ]  # fmt: skip
    assert failing_relay(Analysis(refusals=refusals)) == ("two", (2, 22), (3, 100))
    assert failing_relay(Analysis(refusals=refusals[:2])) is None


def test_the_failures_at_the_relays_are_together_those_of_all() -> None:
    """At one, requests were repeated; at the other, their connections failed. No relay knew the third endpoint."""
    known = [
        {"relay": relay, "event": f"exchange_{event}", "status": 0, "n": n}
        for relay, event, n in (("one", "sent", 50), ("one", "repeated", 5), ("two", "sent", 50), ("two", "failed", 4))
    ]
    rows = [exchange("sent", 110), exchange("repeated", 5), exchange("failed", 4)]
    assert trouble_of(Analysis(exchanges=rows, refusals=known)) == Trouble(115, 9, {0: 9}, 0, 4)
    rows[2] = exchange("failed", 14)
    assert trouble_of(Analysis(exchanges=rows, refusals=known)).failed == 14


# the exchanges that failed


def test_requests_and_failures_are_added_over_all_kinds() -> None:
    rows = [
        exchange("sent", 60),
        exchange("sent", 30),
        exchange("repeated", 10),
        exchange("abandoned", 50),
        exchange("answered", 80, 200),
        exchange("answered", 3, 503),
        exchange("answered", 2, 503),
        exchange("answered", 4, 429),
    ]
    found = trouble_of(Analysis(exchanges=rows, absences=2))
    assert found == Trouble(100, 10, {503: 5, 429: 4, 0: 1}, absences=2, broken=0)
    assert found.share == 0.1


def test_a_request_that_was_refused_and_repeated_failed_once() -> None:
    assert trouble_of(Analysis(exchanges=refusals(7))) == Trouble(100, 7, {503: 7}, 0, 0)


def test_a_request_whose_connection_failed_and_that_was_repeated_failed_once() -> None:
    rows = [exchange("sent", 90), exchange("repeated", 10), exchange("failed", 6)]
    assert trouble_of(Analysis(exchanges=rows)) == Trouble(100, 10, {0: 10}, 0, 6)
    rows = [exchange("sent", 90), exchange("repeated", 10), exchange("failed", 12)]
    assert trouble_of(Analysis(exchanges=rows)) == Trouble(100, 12, {0: 12}, 0, 12)


def test_the_share_is_unknown_if_more_requests_failed_than_were_sent() -> None:
    """One endpoint may have traced all packets, and another one at the level "connection"."""
    rows = [exchange("sent", 2), exchange("failed", 5), exchange("answered", 4, 502)]
    found = trouble_of(Analysis(exchanges=rows))
    assert (found.requests, found.failed, found.share) == (None, 9, None)
    rows = [exchange("sent", 9), *rows[1:]]
    assert trouble_of(Analysis(exchanges=rows)).share == 1.0


def test_the_share_of_failures_is_unknown_if_only_failures_were_recorded() -> None:
    """A trace of the level "connection" has no requests that succeeded at once."""
    found = trouble_of(Analysis(exchanges=refusals(5, requests=5)[1:]))
    assert (found.requests, found.failed, found.share) == (None, 5, None)
    assert found.is_of_note
    assert not trouble_of(Analysis(exchanges=refusals(4, requests=4)[1:])).is_of_note


def test_there_is_no_trouble_without_failures() -> None:
    found = trouble_of(Analysis(exchanges=[exchange("sent", 9), exchange("answered", 9, 200)]))
    assert (found, found.share, found.is_of_note) == (Trouble(9, 0, {}, 0, 0), 0.0, False)
    assert not trouble_of(Analysis()).is_of_note
