"""The doctor's conclusions about HTTP connections. tests/client/doctor/test_hops.py has hops that limit them."""

from __future__ import annotations

import pytest

from tests.client.doctor.prober import Asked, FakeProber, answered, finding, foreign, trials
from tests.support.hurried_loop import hurried
from tunnel.carriers.probes.probe import Reply
from tunnel_client.doctor.connection_steps import examine_at_once, examine_reuse, examine_timeouts
from tunnel_client.doctor.findings import Report, Verdict


def at_once(fake: FakeProber, failed: Reply | None = None) -> Report:
    report, found = Report(""), trials(fake)
    if failed is not None:
        found.failed.append(failed)
    hurried(examine_at_once(report, found))
    return report


def test_429_to_some_of_the_requests_that_come_together_is_a_limit_of_these() -> None:
    report = at_once(FakeProber(path=lambda asked: foreign(429) if asked.hold_s and asked.lane > 2 else None))
    assert finding(report, "at once").text.startswith("only 3 requests pass at once; the others fail (HTTP 429")
    assert len(report.findings) == 1


def test_where_a_limiter_is_known_no_requests_come_together() -> None:
    report, fake = Report(""), FakeProber()
    found = trials(fake)
    found.slow_down(0.5)
    hurried(examine_at_once(report, found))
    assert finding(report, "at once").verdict is Verdict.SKIPPED
    assert not fake.asked


def test_accidents_are_not_taken_for_a_limit_of_requests_at_once() -> None:
    def path(asked: Asked) -> Reply | None:
        return foreign(200) if asked.hold_s and asked.lane == 2 else None

    assert finding(at_once(FakeProber(path=path), foreign(200)), "at once").verdict is Verdict.SKIPPED
    found = finding(at_once(FakeProber(path=path)), "at once")
    assert (found.verdict, found.data) == (Verdict.OK, {"requests": 5})


def test_late_answers_show_a_queue() -> None:
    def path(asked: Asked) -> Reply | None:
        reply = answered()
        reply.seconds = 3.0
        return reply if asked.hold_s and asked.lane else None

    report = at_once(FakeProber(path=path))
    assert "only one request passes at once; the others wait until" in finding(report, "at once").text


@pytest.mark.parametrize(("together_s", "is_limited"), [(0.001, False), (0.3, True)])
def test_a_hop_that_delays_requests_is_found_if_many_at_once_are_no_faster(together_s: float, is_limited: bool) -> None:
    report, fake = Report(""), FakeProber(delay_s=together_s)
    found = trials(fake)
    found.median_s = found.worst_s = 0.05
    hurried(examine_at_once(report, found))
    steps = [one.step for one in report.findings]
    assert ("rate limit" in steps) == is_limited


def test_a_path_on_which_no_request_may_wait_is_not_judged() -> None:
    found = finding(at_once(FakeProber(path=lambda asked: foreign(504) if asked.hold_s else None)), "at once")
    assert found.verdict is Verdict.SKIPPED
    assert "HTTP 504" in found.text


def test_it_is_noted_whether_an_http_connection_carries_several_exchanges() -> None:
    report, fake = Report(""), FakeProber(reuses=False)
    hurried(examine_reuse(report, trials(fake)))
    assert finding(report, "connections").data == {"reused": False}
    assert fake.is_fresh
    report, fake = Report(""), FakeProber()
    hurried(examine_reuse(report, trials(fake)))
    assert finding(report, "connections").data == {"reused": True}
    assert not fake.is_fresh


@pytest.mark.parametrize("most", [0, 1])
def test_a_hold_that_is_cut_is_reported_with_the_answer_that_cut_it(most: int) -> None:
    report = Report("")
    found = trials(FakeProber(path=lambda asked: foreign(504, "", server="nginx/1.2") if asked.hold_s else None))
    found.requests_max = most
    hurried(examine_timeouts(report, found, 0.01))
    line = finding(report, "hold limit")
    assert line.verdict is Verdict.NOTE
    assert "(HTTP 504 from nginx 1.2, an empty body)" in line.text
    assert finding(report, "idle limit").verdict is Verdict.OK
