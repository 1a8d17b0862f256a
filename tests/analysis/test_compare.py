"""What changed between two traces, with the confidence that the numbers allow."""

from typing import Any

import pytest

from tunnel.analysis.answers.compare import changes, sentence_of
from tunnel.analysis.results.result import Analysis


def analysis(
    lost: int = 0,
    judged: int = 10_000,
    trips_us: tuple[int | None, ...] = (),
    rates: tuple[int, ...] = (),
    gilbert: dict[str, Any] | None = None,
    limits: dict[str, int] | None = None,
) -> Analysis:
    return Analysis(
        totals={
            "streams": 1, "packets": judged, "unique_packets": judged, "judged": judged, "lost": lost, "needless": 0,
            "judged_repeats": 0,
        },
        gilbert=gilbert or {},
        limits=limits or {},
        bucket_us=1_000_000,
        trips_over_time=[{"bucket": at, "trip_us_p50": us} for at, us in enumerate(trips_us)],
        goodput=[{"bucket": at, "sent_bytes": 1, "received_bytes": size} for at, size in enumerate(rates)],
    )  # fmt: skip


def change(name: str, before: Analysis, after: Analysis) -> tuple[str, bool | None]:
    (row,) = (row for row in changes(before, after) if row.name == name)
    return row.confidence, row.is_more


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (10, 300, ("certain", True)),
        (300, 10, ("certain", False)),
        (100, 130, ("likely", True)),
        (100, 105, ("not proven", True)),
        (100, 100, ("not proven", None)),
        (0, 3, ("too few to tell", True)),
    ],
)
def test_shares_are_compared_by_how_many_packets_they_are_of(
    before: int, after: int, expected: tuple[str, bool | None]
) -> None:
    assert change("loss", analysis(before), analysis(after)) == expected


def test_losses_in_bursts_prove_less_than_single_ones() -> None:
    """Ten losses of one burst are one accident."""
    bursts = {"p": 0.001, "r": 0.1}
    assert change("loss", analysis(100), analysis(150))[0] == "likely"
    assert change("loss", analysis(100, gilbert=bursts), analysis(150, gilbert=bursts))[0] == "not proven"


def test_what_a_trace_does_not_tell_is_unknown() -> None:
    assert change("loss", analysis(judged=0), analysis(5)) == ("unknown", None)
    assert change("loss", Analysis(), analysis(5)) == ("unknown", None)
    assert change("round trip", analysis(), analysis(trips_us=(1, 2))) == ("unknown", None)


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (range(100, 120), range(200, 220), ("certain", True)),
        (range(200, 220), range(100, 120), ("certain", False)),
        (range(100, 107), range(104, 111), ("likely", True)),
        (range(100, 120), range(101, 121), ("not proven", True)),
        ([5] * 9, [5] * 9, ("not proven", None)),
        (range(4), range(100, 104), ("too few to tell", True)),
    ],
)
def test_times_are_compared_as_medians_of_intervals(before: Any, after: Any, expected: tuple[str, bool | None]) -> None:
    assert change("round trip", analysis(trips_us=(*before, None)), analysis(trips_us=tuple(after))) == expected


def test_rates_are_those_of_intervals_in_which_something_was_sent() -> None:
    slow, fast = analysis(rates=tuple(range(1_000, 1_020))), analysis(rates=tuple(range(2_000, 2_020)))
    fast.goodput.append({"bucket": 99, "sent_bytes": 0, "received_bytes": 0})
    (row,) = (row for row in changes(slow, fast) if row.name == "received per second")
    assert (row.before, row.after, row.confidence) == ("8.08 kbit/s", "16.1 kbit/s", "certain")


def test_the_causes_of_both_are_set_side_by_side() -> None:
    before, after = analysis(limits={"idle": 9, "carrier_full": 1}), analysis(limits={"carrier_full": 10})
    rows = [(row.name, row.before, row.after) for row in changes(before, after) if row.name.startswith("time: ")]
    assert rows == [
        ("time: the rate of the path", "10 %", "100 %"),
        ("time: the application wrote slowly", "90 %", "0 %"),
    ]
    assert sentence_of(before, after) == (
        "The main limit was: the application wrote slowly. Now it is: the rate of the path."
    )
    assert sentence_of(after, after) == "Both were limited by: the rate of the path."
    assert sentence_of(after, Analysis()) == "The second trace does not tell what limited goodput."
    assert sentence_of(Analysis(), after) == "The first trace does not tell what limited goodput."
    assert sentence_of(Analysis(), Analysis()) == "Neither trace tells what limited goodput."
