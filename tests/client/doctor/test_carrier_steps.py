"""The doctor's conclusions about exchanges in a row, limits of their rate, and links."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.client.doctor.prober import Asked, FakeProber, answered, cut, finding, foreign, trials
from tests.support.hurried_loop import hurried
from tunnel.carriers.probes.probe import Reply
from tunnel.ground.exit_codes import OK, UNREACHABLE
from tunnel_client.doctor import carrier_steps
from tunnel_client.doctor.carrier_steps import ROUNDS, ROUNDS_GOOD, examine_link, examine_others, examine_poll
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.path_steps import examine_reliability
from tunnel_client.doctor.trials import Trials
from tunnel_client.settings import RelaySettings


def polled(path: Callable[[Asked], Reply | None]) -> tuple[bool, Report, Trials]:
    report, found = Report("http://relay.invalid"), trials(FakeProber(path=path))
    works: list[bool] = []

    async def main() -> None:
        works.append(await examine_poll(report, found))
        examine_reliability(report, found)

    hurried(main())
    return works[0], report, found


def refusing(status: int, passes: Callable[[int], bool]) -> Callable[[Asked], Reply | None]:
    return lambda asked: None if passes(asked.number) else foreign(status, "", server="nginx/1.2")


def test_exchanges_that_all_work_are_all_ok() -> None:
    works, report, found = polled(lambda asked: None)
    assert works
    assert {one.step: one.verdict for one in report.findings} == dict.fromkeys(
        ("poll", "latency", "repeats", "reliability"), Verdict.OK
    )
    assert (found.made, found.pause_s) == (ROUNDS_GOOD, 0.0)


def test_a_hop_that_refuses_slow_requests_as_well_limits_no_rate() -> None:
    works, report, found = polled(refusing(503, lambda number: number % 2 == 0))
    assert works
    assert found.limiter is None
    assert found.pause_s == 0
    assert "HTTP 503 from nginx 1.2" in finding(report, "reliability").text


def test_one_refusal_in_ten_is_no_rate_limit_unless_it_is_a_429() -> None:
    def passes(number: int) -> bool:
        return number % 10 != 5

    assert polled(refusing(503, passes))[2].limiter is None
    found = polled(refusing(429, lambda number: number != 5))[2].limiter
    assert found is not None
    assert (found.reply.status, found.requests) == (429, 5)


def test_exchanges_that_never_work_are_a_problem() -> None:
    def path(asked: Asked) -> Reply | None:
        raise cut("the connection was reset")

    works, report, _ = polled(path)
    assert not works
    assert report.exit_code == UNREACHABLE
    assert "answered no exchange for 63 s (the connection was reset)" in finding(report, "poll").text


def test_a_slow_path_takes_few_exchanges_and_is_noted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_client.doctor.carrier_steps._ROUNDS_S", 0.0)

    def path(asked: Asked) -> Reply | None:
        reply = answered(serial=asked.number)
        reply.seconds = 2.0
        return reply

    works, report, found = polled(path)
    assert works
    assert found.made == 3
    assert finding(report, "latency").verdict is Verdict.NOTE


@pytest.mark.parametrize(("pause_s", "text"), [(0.0, "it needs two requests at once"), (0.5, "a limiter lets few")])
def test_where_one_request_passes_at_a_time_answers_are_not_streamed(
    pause_s: float, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def upgraded(trials: Trials, *, is_websocket: bool) -> str:
        return "refused"

    monkeypatch.setattr(carrier_steps, "_upgraded", upgraded)
    found, report = trials(FakeProber()), Report("")
    found.requests_max, found.pause_s = 1, pause_s
    hurried(examine_others(report, found, RelaySettings("http://127.0.0.1:9")))
    assert finding(report, "stream").verdict is Verdict.SKIPPED
    assert text in finding(report, "stream").text


def test_requests_that_a_hop_repeats_are_counted() -> None:
    _, report, _ = polled(lambda asked: answered(serial=2 * asked.number))
    assert finding(report, "repeats").data == {"repeated": ROUNDS_GOOD - 1}


@pytest.mark.parametrize("bad", [1, ROUNDS_GOOD])
def test_one_exchange_that_fails_is_reason_enough_for_all_of_them(bad: int) -> None:
    _, report, found = polled(refusing(503, lambda number: number != bad))
    assert (found.made, len(found.failed)) == (ROUNDS, 1)
    assert finding(report, "poll").verdict is Verdict.OK


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        ("", "connections can be upgraded, and data passes both ways"),
        ("HTTP 426 instead of an upgrade: Upgrade to tunnel-link/1", "a hop removes the header Upgrade"),
        ("HTTP 400 instead of an upgrade: <html> <h1>Bad", "connections cannot be upgraded here (HTTP 400 instead of"),
        (
            "the connection was upgraded (HTTP 101), but nothing came",
            "connections cannot be used after an upgrade: the",
        ),
    ],
)
def test_the_reason_why_a_link_fails_is_explained(reason: str, text: str) -> None:
    report = Report("http://relay.invalid")
    hurried(examine_link(report, trials(FakeProber(link=reason))))
    found = finding(report, "link")
    assert text in found.text
    assert "<" not in found.text
    assert found.data["works"] == (not reason)
    assert report.exit_code == OK


def test_behind_a_forward_proxy_https_is_recommended_for_a_link() -> None:
    report = Report("http://relay.invalid")
    hurried(examine_link(report, trials(FakeProber(link="HTTP 403", proxy="http://proxy.invalid:3128"))))
    assert "https:// URL" in finding(report, "link").advice
