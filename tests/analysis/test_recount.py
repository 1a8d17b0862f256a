"""The main numbers of a report over real processes agree with another count in plain Python, within one per cent."""

from pathlib import Path

import pytest

from tests.analysis.job import Found
from tests.analysis.recount import Recount, recount
from tunnel.analysis.blame import blames, lived_us
from tunnel.analysis.result import Analysis

pytestmark = pytest.mark.timeout(1600)

SHARE = 0.01


@pytest.fixture(scope="module")
def counted(job_directory: Path) -> Recount:
    return recount(job_directory / "cases" / "all")


@pytest.fixture
def whole(found: Found) -> Analysis:
    return found.diagnosed.whole


@pytest.mark.parametrize(
    "name",
    ["streams", "both_ends", "packets", "needless", "judged", "lost", "payload_bytes", "useful_bytes", "known_bytes",
     "never_arrived", "busy_us"],
)  # fmt: skip
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
    assert lived_us(whole) == pytest.approx(counted.lived_us, rel=SHARE)


def test_shares_add_up_to_the_whole(whole: Analysis) -> None:
    found = blames(whole)
    assert sum(blame.us for blame in found) == lived_us(whole)
    assert all(0 <= blame.stalled_us <= blame.us for blame in found)
