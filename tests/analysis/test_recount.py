"""The main numbers of a report over real processes agree with another count in plain Python, within one per cent."""

from pathlib import Path

import pytest

from tests.analysis.recount import TOTALS, Recount, recount
from tests.analysis.spark_job import CASES, SparkFound
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import blames, explained_us, life_us

pytestmark = pytest.mark.timeout(1600)

SHARE = 0.01


@pytest.fixture(scope="module")
def counted(spark_directory: Path) -> Recount:
    return recount(spark_directory / "cases" / "all")


@pytest.fixture(params=["duckdb", "spark"])
def whole(spark_found: SparkFound, request: pytest.FixtureRequest) -> Analysis:
    by_engine: dict[str, Analysis] = getattr(spark_found, request.param)
    return by_engine[CASES]


@pytest.mark.parametrize("name", TOTALS)
def test_totals_agree(whole: Analysis, counted: Recount, name: str) -> None:
    assert whole.totals[name] == pytest.approx(getattr(counted, name), rel=SHARE)


def test_repeats_agree(whole: Analysis, counted: Recount) -> None:
    repeats = whole.totals["packets"] - whole.totals["unique_packets"]
    assert repeats == pytest.approx(counted.repeats, rel=SHARE)
    assert sum(row["packets"] for row in whole.retransmissions if row["cause"]) == repeats


def test_every_event_is_counted_once(whole: Analysis, counted: Recount) -> None:
    assert sum(row["events"] for row in whole.files) == counted.events


def test_the_model_of_losses_agrees(whole: Analysis, counted: Recount) -> None:
    fit = whole.gilbert
    expected = [counted.transitions[before, now] for before in (0, 1) for now in (0, 1)]
    assert [fit["n00"], fit["n01"], fit["n10"], fit["n11"]] == pytest.approx(expected, rel=SHARE, abs=0)
    assert fit["r"] == pytest.approx(expected[2] / (expected[2] + expected[3]), rel=SHARE)


@pytest.mark.parametrize(("published", "name"), [("trips", "trips"), ("receipts", "receipts")])
def test_round_trips_agree(whole: Analysis, counted: Recount, published: str, name: str) -> None:
    times, samples = getattr(whole, published), sorted(getattr(counted, name))
    assert times["samples"] == pytest.approx(len(samples), rel=SHARE)
    assert times["us_min"] == samples[0]
    for place, share in ((0, 0.5), (1, 0.95), (2, 0.99)):
        rank = share * len(samples)
        near = samples[max(0, int(rank * (1 - SHARE)) - 1) : int(rank * (1 + SHARE)) + 1]
        assert near[0] <= times["us"][place] <= near[-1]


def test_exchanges_agree(whole: Analysis, counted: Recount) -> None:
    published = {(row["kind"], row["event"], row["status"]): row["n"] for row in whole.exchanges}
    assert published == dict(counted.exchanges)


def test_stalls_and_the_time_of_all_senders_agree(whole: Analysis, counted: Recount) -> None:
    assert sum(row["stalls"] for row in whole.stalls) == pytest.approx(counted.stalls, rel=SHARE)
    assert sum(row["us"] for row in whole.stalls) == pytest.approx(counted.stalled_us, rel=SHARE)
    expected_us = counted.limited_us + counted.stalled_us + counted.unread_us - counted.unread_limited_us
    assert explained_us(whole) == pytest.approx(expected_us, rel=SHARE)


def test_the_life_of_all_streams_agrees(whole: Analysis, counted: Recount) -> None:
    assert life_us(whole) == pytest.approx(counted.life_us, rel=SHARE)
    assert whole.life["asked_us"] == pytest.approx(counted.asked_us, rel=SHARE)
    assert 0 < whole.life["asked_us"] + whole.life["asked_stalled_us"] <= counted.asked_most_us * (1 + SHARE)


def test_the_time_in_which_bytes_waited_for_the_application_agrees(whole: Analysis, counted: Recount) -> None:
    unread = dict.fromkeys(("whole", "limit", "stall"), 0)
    for row in whole.unread:
        unread[row["of"]] += row["us"]
    assert unread["whole"] == pytest.approx(counted.unread_us, rel=SHARE)
    assert unread["whole"] > 1_000_000
    assert unread["limit"] + unread["stall"] == pytest.approx(counted.unread_limited_us, rel=SHARE)


def test_shares_add_up_to_the_whole(whole: Analysis) -> None:
    found = blames(whole)
    assert sum(blame.us for blame in found) == explained_us(whole)
    assert all(0 <= blame.stalled_us <= blame.us for blame in found)
