"""How the doctor decides what refused a question, and how it waits and slows down."""

from __future__ import annotations

import asyncio
import functools

from tests.client.doctor.limiters import PASS, RESET, Judged, Rule, Seen, Window
from tests.client.doctor.prober import LIMITS, Asked, FakeProber, finding, foreign, trials
from tests.client.doctor.ruled import RuledProber
from tests.support.hurried_loop import hurried
from tunnel.carriers.probes.probe import Prober, Reply
from tunnel_client.doctor.connection_steps import examine_reuse
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.size_steps import examine_sizes
from tunnel_client.doctor.trials import CONNECTIONS_S, CONTROL_S, REQUESTS, REST_S, SLOW_CONNECTIONS, Trials, now_s


class Until(Rule):
    """Refuses everything until a time, and counts what it refuses."""

    def __init__(self, ends_s: float, status: int = RESET) -> None:
        self.ends_s = ends_s
        self.status = status

    def judge(self, seen: Seen) -> Judged:
        return Judged(self.status) if seen.at_s < self.ends_s else PASS


class Large(Rule):
    """Answers large bodies with a status."""

    def __init__(self, status: int) -> None:
        self.status = status

    def judge(self, seen: Seen) -> Judged:
        return Judged(self.status) if seen.size > 1000 else PASS


def ruled(*rules: Rule) -> Trials:
    fake = RuledProber(*rules)
    fake.attached = LIMITS
    real: Prober = fake  # type: ignore[assignment]
    return Trials(real)


def test_two_accidents_in_a_row_are_no_limiter_and_three_are() -> None:
    for failures in (1, 2):
        found = trials(FakeProber(path=functools.partial(_failing, failures)))
        hurried(found.once(lambda found=found: found.prober.exchange()))  # type: ignore[misc]
        assert found.limiter is None
    found = trials(FakeProber(path=functools.partial(_failing, 3)))
    reply = hurried(found.once(found.prober.exchange))
    assert reply.kind == "answer"
    assert found.limiter is not None


def _failing(failures: int, asked: Asked) -> Reply | None:
    return foreign(503) if asked.number <= failures else None


def test_a_question_leaves_time_after_the_one_that_decided_about_it() -> None:
    found = trials(FakeProber())
    times: list[float] = []

    async def main() -> None:
        assert not await found.is_refused(foreign(503))
        times.append(now_s())
        assert not await found.is_refused(foreign(503))
        times.append(now_s())

    hurried(main())
    assert times[0] >= 2 * CONTROL_S
    assert times[1] >= 3 * CONTROL_S


def test_what_waits_at_the_relay_does_not_make_a_decision_wrong() -> None:
    def small_answers_only(asked: Asked) -> Reply | None:
        return foreign(403) if asked.size > 1000 else None

    fake = FakeProber(path=small_answers_only)
    fake.waiting_bytes = 100_000
    found = trials(fake)
    assert not hurried(found.is_refused(foreign(403)))
    assert found.limiter is None


def test_the_time_that_a_limiter_asks_for_is_left_to_it() -> None:
    rule = Window(1, 1.0, 503, ban_s=20, retry_after_s=20)
    found = ruled(rule)

    async def main() -> None:
        for _ in range(2):
            assert (await found.once(found.prober.exchange)).kind == "answer"

    hurried(main())
    assert rule.refused == 1


def test_after_a_limiter_connections_are_few_and_the_next_command_finds_it_at_rest() -> None:
    found = ruled()
    times: list[float] = []

    async def main() -> None:
        found.slow_down(0.5)
        for _ in range(SLOW_CONNECTIONS + 1):
            await found.room(1, 1)
            times.append(now_s())
        await found.rest()
        times.append(now_s())

    hurried(main())
    assert times[:-1] == [*[0.0] * SLOW_CONNECTIONS, CONNECTIONS_S]
    assert times[-1] == 2 * CONNECTIONS_S + REST_S


def test_a_connection_that_a_limiter_ended_says_nothing_about_reuse() -> None:
    report = Report("")
    hurried(examine_reuse(report, ruled(Until(1.5))))
    assert finding(report, "connections").data == {"reused": True}


def test_a_proxy_that_asks_for_credentials_is_no_limit_of_bodies() -> None:
    report, found = Report(""), ruled(Large(407))

    async def main() -> None:
        await examine_sizes(report, found)

    hurried(main())
    line = finding(report, "body limit")
    assert (line.verdict, line.data) == (Verdict.SKIPPED, {})
    assert "HTTP 407" in line.text


def test_a_pause_does_not_end_the_time_that_a_step_was_said_to_take() -> None:
    report, told = Report("", begun=lambda is_news: None), []
    found = ruled()
    found.report = report

    async def main() -> None:
        report.begin("letting a request wait", 30.0)
        report.begun = lambda is_news: told.append((report.doing, report.takes_s))
        for _ in range(REQUESTS + 1):
            await found.ask(found.prober.exchange)

    hurried(main())
    (pausing, pauses_s), after = told
    assert pausing.startswith("pausing")
    assert pauses_s > 0
    assert after == ("letting a request wait", 30.0)


def test_a_step_that_a_limiter_held_up_goes_on_as_it_was_announced() -> None:
    report = Report("")
    found = ruled(Until(5.0, 429))
    found.report = report
    report.begin("letting a request wait", 30.0)
    hurried(found.once(found.prober.exchange))
    assert found.limiter is not None
    assert (report.doing, report.takes_s) == ("letting a request wait", 30.0)


def test_a_limiter_that_is_found_during_a_pause_does_not_make_the_pause_last() -> None:
    report = Report("")
    found = ruled(Until(5.0, 429))
    found.report = report

    async def main() -> None:
        report.begin("letting a request wait", 30.0)
        pausing = asyncio.create_task(found._until(now_s() + 4.0))
        await asyncio.sleep(0)
        await found.is_refused(foreign(429))
        await pausing

    hurried(main())
    assert not report.doing.startswith("pausing")
