"""The sentences of the verdict, on analyses made by hand."""

from typing import Any

import pytest

from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.families import FAMILIES
from tunnel.analysis.verdicts.verdict import unknowns, verdict
from tunnel.analysis.words import CAUSES

RATE = {"carrier_full": 1_000}
NO_PACKETS = "The trace has no packets: record with --trace-level packet, or for longer."
ONE_END = (
    "No stream was traced at both ends, so the trace does not tell which transmissions were lost, and which repeats "
    "were needless. To know that, trace both ends."
)
NO_LOSS = "No transmission was lost."


def streams(**changes: int) -> dict[str, int]:
    return {
        "streams": 2, "both_ends": 2, "packets": 1000, "unique_packets": 1000, "judged": 1000, "lost": 0, "needless": 0,
        "never_arrived": 0, "in_doubt": 0, "open_packets": 0, "resent_bytes": 0, "duration_us": 1_000_000, **changes,
    }  # fmt: skip


def stall(why: str, us: int) -> dict[str, Any]:
    return {"why": why, "us": us, "stalls": 1, "streams": 1}


def exchange(event: str, n: int, status: int = 0) -> dict[str, Any]:
    return {"kind": "push", "event": f"exchange_{event}", "status": status, "n": n}


def told(**changes: Any) -> list[str]:
    """The sentences about a trace that has streams; without changes, nothing was wrong in it."""
    return verdict(Analysis(**{"totals": streams(), "limits": RATE, **changes}))


def limit(**changes: Any) -> str:
    """The sentence about the limit of goodput."""
    return told(**changes)[0]


# the limit of goodput


def test_the_verdict_on_a_run_without_faults_says_so() -> None:
    assert told(limits={"carrier_full": 3_000, "idle": 1_000}) == [
        (
            "The main limit of goodput was: the rate of the path (bytes waited, all windows were open, and the carrier "
            "took as much as the path let through). It took 3 ms: 75 % of the 4 ms for which streams lived, of which "
            "100 % are explained. The second was: the application wrote slowly, 25 %. Nothing was wrong with the "
            "tunnel; look at the bandwidth of the slowest hop, and at the processors of both ends and the relay."
        ),
        NO_LOSS,
    ]


@pytest.mark.parametrize(("second_us", "is_told"), [(50, True), (49, False)])
def test_a_second_limit_is_named_if_it_took_at_least_a_twentieth_of_the_time(second_us: int, is_told: bool) -> None:
    text = limit(limits={"carrier_full": 1_000 - second_us, "idle": second_us})
    assert ("The second was: the application wrote slowly, 5 %." in text) == is_told


def test_the_time_that_the_main_limit_took_in_stalls_is_told() -> None:
    assert "It took 9 ms (6 ms of it in stalls): 100 % of" in limit(
        limits={"connecting": 3_000}, stalls=[stall("connecting", 6_000)]
    )
    assert "in stalls" not in limit(limits={"connecting": 9_000})


@pytest.mark.parametrize("family", ["reader", "window", "edge", "connecting", "delay"])
def test_the_first_sentence_ends_with_the_place_to_look_at(family: str) -> None:
    limits = {"reader": "reader_slow", "window": "window_full", "edge": "edge_reached", "delay": "ending"}
    assert limit(limits={limits.get(family, family): 5}).endswith(f" {FAMILIES[family].advice}.")


def test_the_stage_that_lost_most_packets_is_the_place_to_look_at_for_losses() -> None:
    stages = [{"stage": "after the relay had it"}, {"stage": "before the relay had it"}]
    losing: dict[str, Any] = {"totals": streams(lost=9), "stalls": [stall("loss", 9_000)]}
    advice = FAMILIES["loss"].advice
    assert limit(loss_stages=stages, **losing).endswith(
        f" Most packets were lost here: after the relay had it. {advice}."
    )
    assert limit(**losing).endswith(f" are explained. The second was: the rate of the path, 10 %. {advice}.")
    assert "lost here" not in limit(loss_stages=stages, totals=streams(lost=9))


def test_a_trace_of_no_duration_is_too_short_for_a_verdict() -> None:
    assert told(limits={}) == [
        "The trace is too short to tell what limited goodput: record for longer.",
        NO_LOSS,
    ]


def test_the_trace_of_receivers_alone_does_not_tell_what_limited_goodput() -> None:
    sentences = told(totals=streams(packets=0, unique_packets=0, both_ends=0, judged=0))
    assert sentences == [
        "The senders of the streams were not traced, so the trace does not tell what limited goodput.",
        ONE_END,
    ]


def test_a_trace_without_packets_says_how_to_record_them() -> None:
    assert verdict(Analysis()) == [NO_PACKETS]
    assert verdict(Analysis(totals={"streams": 0}, limits=RATE)) == [NO_PACKETS]


# requests that failed


@pytest.mark.parametrize(
    ("status", "words"),
    [
        (0, "Requests had no answer: look at whether the relay ran"),
        (407, "the proxy wants credentials"),
        (413, "client_max_body_size"),
        (429, "a proxy limits the rate of requests"),
        (500, "look at the log of the proxy or relay that answers so"),
        (502, "a proxy did not reach the next hop"),
        (503, "was overloaded or shutting down"),
        (504, "raise its read timeout"),
        (418, "Run tunnel doctor"),
    ],
)
@pytest.mark.parametrize("is_main", [True, False])
def test_the_status_of_failed_requests_decides_the_advice(status: int, words: str, is_main: bool) -> None:
    failed = exchange("answered", 15, status) if status else exchange("failed", 15)
    sentences = told(limits={"carrier_full" if is_main else "idle": 1_000}, exchanges=[exchange("sent", 100), failed])
    assert words in sentences[0 if is_main else 1]
    assert words not in sentences[1 if is_main else 0]
    how = f"status {status}" if status else "no answer"
    assert f"15 of 100 requests failed (15.0 %; {how}: 15)." in sentences[1]


def test_the_advice_is_about_the_most_frequent_status_that_has_one() -> None:
    rows = [exchange("sent", 1_000), exchange("answered", 60, 418)]
    rows += [exchange("answered", n, status) for n, status in ((20, 502), (21, 504), (21, 503))]
    sentences = told(exchanges=rows)
    assert sentences[0].endswith(" Status 503: a proxy or the relay was overloaded or shutting down: look at its log.")
    assert sentences[1] == (
        "122 of 1,000 requests failed (12.2 %; status 418: 60, status 503: 21, status 504: 21, status 502: 20)."
    )


def test_at_most_four_statuses_are_listed() -> None:
    rows = [exchange("sent", 100), *(exchange("answered", status - 495, status) for status in range(500, 506))]
    assert "; status 505: 10, status 504: 9, status 503: 8, status 502: 7)." in told(exchanges=rows)[1]


@pytest.mark.parametrize(
    ("absences", "words"), [(1, "could not reach it: once."), (2_000, "could not reach it: 2,000 times.")]
)
def test_the_verdict_says_how_often_endpoints_lost_their_relay(absences: int, words: str) -> None:
    whole = f"Endpoints lost their relay, or {words}"
    assert told(absences=absences)[1] == whole
    assert told(limits={"idle": 5}, absences=absences)[1] == f"{whole} {FAMILIES['http'].advice}."
    exchanges = [exchange("sent", 100), exchange("failed", 2)]
    sentence = told(exchanges=exchanges, absences=absences)[1]
    assert sentence == f"2 of 100 requests failed (2.0 %; no answer: 2). {whole}"


def test_a_relay_that_never_answered_is_the_verdict_if_no_packet_was_traced() -> None:
    sentences = verdict(Analysis(exchanges=[exchange("sent", 5), exchange("failed", 5)], absences=1))
    assert sentences[0].startswith("5 of 5 requests failed (100.0 %; no answer: 5). Endpoints lost their relay")
    assert "look at whether the relay ran" in sentences[0]
    assert sentences[1:] == [NO_PACKETS]


def test_failed_requests_are_given_without_a_share_if_the_others_were_not_recorded() -> None:
    """A trace of the level "connection" has no requests that succeeded at once."""
    sentences = verdict(Analysis(exchanges=[exchange("repeated", 5), exchange("answered", 5, 503)]))
    assert sentences[0].startswith(
        "5 requests failed (status 503: 5); the trace does not tell how many succeeded. Status 503: "
    )


@pytest.mark.parametrize("limits", [RATE, {"idle": 1_000}])
def test_a_few_failed_requests_are_not_mentioned(limits: dict[str, int]) -> None:
    exchanges = [exchange("sent", 1000), exchange("answered", 19, 503)]
    sentences = told(limits=limits, exchanges=exchanges)
    assert "503" not in " ".join(sentences)
    assert sentences[1:] == [NO_LOSS]


def test_a_single_body_that_was_too_large_is_told() -> None:
    """After it, the endpoint sends only smaller bodies."""
    exchanges = [exchange("sent", 1000), exchange("answered", 1, 413)]
    sentence = told(limits={"idle": 1_000}, exchanges=exchanges)[1]
    assert sentence.startswith("1 of 1,000 requests failed (0.1 %; status 413: 1). Status 413: ")


def test_failed_requests_are_listed_without_repeating_the_advice_if_they_are_the_main_limit() -> None:
    exchanges = [exchange("sent", 1000), exchange("answered", 1, 503)]
    assert told(limits={}, stalls=[stall("carrier_http", 9)], exchanges=exchanges)[1] == (
        "1 of 1,000 requests failed (0.1 %; status 503: 1)."
    )
    assert told(limits={}, stalls=[stall("carrier_http", 9)])[1:] == [NO_LOSS]


def test_failed_requests_come_with_advice_if_no_sender_was_traced() -> None:
    totals = streams(packets=0, unique_packets=0)
    sentences = told(totals=totals, exchanges=[exchange("sent", 100), exchange("failed", 50)])
    assert "look at whether the relay ran" in sentences[1]


# losses


def test_the_trace_of_one_end_proves_no_loss() -> None:
    assert told(totals=streams(both_ends=0, judged=0))[1:] == [ONE_END]


def test_losses_are_not_mentioned_if_all_packets_were_still_in_flight_at_the_end() -> None:
    assert told(totals=streams(judged=0, open_packets=9))[1:] == []


def test_the_verdict_says_how_much_is_unknown() -> None:
    unknown = [
        "Only 1 of 2 streams were traced at both ends. Losses of the other streams are unknown, and are not counted.",
        "Packets of which it is unknown whether they were lost, because records of their receiver are missing: 3,000.",
    ]
    totals = streams(both_ends=1, in_doubt=3_000)
    assert unknowns(totals) == unknown
    assert told(totals=totals)[1:] == ["No loss is known.", *unknown]
    assert told(totals={**totals, "lost": 1})[2:] == unknown
    assert unknowns(streams()) == []
    assert unknowns(streams(in_doubt=3_000)) == unknown[1:]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, " Every lost packet arrived by another attempt."),
        ({"open_packets": 1}, " As far as the trace shows, every lost packet arrived by another attempt."),
        ({"in_doubt": 1}, " As far as the trace shows, every lost packet arrived by another attempt."),
        ({"never_arrived": 3_000}, " Packets that never arrived, not even by a later attempt: 3,000."),
        ({"never_arrived": 1, "in_doubt": 1}, " Packets that never arrived, not even by a later attempt: 1."),
    ],
)
def test_the_verdict_says_whether_lost_packets_arrived_in_the_end(changes: dict[str, int], words: str) -> None:
    assert told(totals=streams(lost=10, **changes))[1] == f"10 of 1,000 transmissions were lost (1.00 %).{words}"


@pytest.mark.parametrize(
    ("mean_burst", "burst_ratio", "words"),
    [
        (4.04, 3.3, ", in bursts: 4 packets at a time on average."),
        (1.26, 1.501, ", in bursts: 1.3 packets at a time on average."),
        (1.5, 1.5, ", one by one: 1.5 packets at a time on average."),
        (1.2, None, ", one by one: 1.2 packets at a time on average."),
        (None, None, "."),
    ],
)
def test_losses_that_follow_each_other_more_than_by_chance_are_bursts(
    mean_burst: float | None, burst_ratio: float | None, words: str
) -> None:
    fit = {"mean_burst": mean_burst, "burst_ratio": burst_ratio}
    sentence = told(totals=streams(lost=1), gilbert=fit)[1]
    lost, arrived = "1 of 1,000 transmissions were lost (0.10 %)", "Every lost packet arrived by another attempt."
    assert sentence == f"{lost}{words} {arrived}"


def test_the_place_at_which_most_packets_were_lost_is_told() -> None:
    stages = [{"stage": "after the relay had it"}, {"stage": "before the relay had it"}]
    fit = {"mean_burst": 2.0, "burst_ratio": 2.0}
    assert told(totals=streams(lost=1), gilbert=fit, loss_stages=stages)[1] == (
        "1 of 1,000 transmissions were lost (0.10 %), in bursts: 2 packets at a time on average. Most were lost here: "
        "after the relay had it. Every lost packet arrived by another attempt."
    )


# repeats


def repeat(cause: str | None, packets: int) -> dict[str, Any]:
    return {"cause": cause, "packets": packets}


def test_repeats_are_told_with_their_most_frequent_cause_and_how_many_were_needless() -> None:
    rows = [repeat(None, 500), repeat("pto_probe", 3), repeat("retransmit_timeout", 4), repeat("pto_probe", 2)]
    totals = streams(packets=2_000, unique_packets=1_000, resent_bytes=5_000, needless=1_200)
    (sentence,) = told(totals=totals, retransmissions=rows)[2:]
    assert sentence == (
        "50.0 % of all transmissions were repeats, 5 KB; the most frequent cause was: "
        f"{CAUSES['pto_probe'][0]}. 1,200 of the repeats were needless: an earlier attempt arrived."
    )
    (sentence,) = told(totals=totals | {"needless": 1}, retransmissions=rows)[2:]
    assert sentence.endswith("1 of the repeats was needless: an earlier attempt arrived.")


def test_repeats_without_a_known_cause_are_told_without_one() -> None:
    totals = streams(packets=1_001, resent_bytes=5_000)
    assert told(totals=totals)[2:] == []
    totals = streams(packets=1_002, resent_bytes=5_000)
    assert told(totals=totals, retransmissions=[repeat(None, 9)])[2:] == [
        "0.2 % of all transmissions were repeats, 5 KB."
    ]


def test_a_cause_of_another_version_has_its_own_name() -> None:
    rows = [repeat("hunch", 3), repeat("pto_probe", 2)]
    sentence = told(totals=streams(packets=1_100), retransmissions=rows)[2]
    assert sentence.endswith("the most frequent cause was: hunch.")


@pytest.mark.parametrize(("packets", "is_told"), [(100_100, False), (100_101, True)])
def test_a_thousandth_of_all_transmissions_may_be_repeats_without_mention(packets: int, is_told: bool) -> None:
    totals = streams(packets=packets, unique_packets=100_000)
    assert any("repeats" in sentence for sentence in told(totals=totals)) == is_told


# the trace itself


def missing(*counts: int) -> list[dict[str, Any]]:
    return [{"writer": str(at), "missing": count} for at, count in enumerate(counts)]


def test_records_that_are_missing_from_the_trace_are_told() -> None:
    words = (
        "Records missing from the trace itself: 3,005. What happened meanwhile is unknown, and is counted neither as a "
        "loss nor as a stall."
    )
    assert told(writers=missing(3_000, 0, 5))[-1] == words
    assert verdict(Analysis(writers=missing(3_005))) == [NO_PACKETS, words]
    assert told(writers=missing(0, 0)) == told()


def problems(*names: str) -> list[dict[str, Any]]:
    return [{"file": name, "problem": "corrupt"} for name in names]


@pytest.mark.parametrize(
    ("names", "which"),
    [
        (("b", "a"), "2 (a, b)"),
        (("c", "b", "a", "b"), "3 (a, b, c)"),
        (("d", "c", "b", "a"), "4 (a, b, c and others)"),
    ],
)
def test_files_with_problems_are_named(names: tuple[str, ...], which: str) -> None:
    words = f"Files with problems: {which}. See 'The trace itself' in the report."
    assert told(problems=problems(*names))[2:] == [words]
    assert verdict(Analysis(problems=problems(*names), writers=missing(1)))[2:] == [words]
