"""The conclusions of the doctor from its first requests. tests/client/doctor/test_examination.py has real relays."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from tests.client.doctor.prober import Played, answered, finding, prober
from tests.support.loops import run
from tunnel.carriers.failures import Failure
from tunnel.carriers.probe import ProbeError
from tunnel.exit_codes import DENIED, NOT_AUTHENTICATED, OK, UNREACHABLE
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.relay_steps import examine_relay

CUT = ProbeError(Failure("cut", "ServerDisconnectedError"))


def examined(played: Played) -> tuple[bool, Report]:
    report, works = Report("http://relay.invalid"), []

    async def main() -> None:
        works.append(await examine_relay(report, prober(played)))

    run(main())
    return works[0], report


@pytest.mark.parametrize(("theirs_s", "word"), [(3600, "behind"), (-3600, "ahead of")])
def test_a_wrong_clock_is_reported_with_the_direction_in_which_to_set_it(theirs_s: int, word: str) -> None:
    reply = answered("attached")
    reply.headers["Date"] = formatdate(time.time() + theirs_s, usegmt=True)
    _, report = examined(Played([reply]))
    found = finding(report, "clock")
    assert found.verdict is Verdict.NOTE
    assert f" s {word} the other side" in found.text
    assert found.advice.startswith("set the clock")
    assert found.data["skew_s"] * theirs_s > 0


@pytest.mark.parametrize("skew_s", [-30, 30])
def test_a_clock_that_is_half_a_minute_off_is_good_enough(skew_s: int) -> None:
    reply = answered("attached")
    reply.headers["date"] = formatdate(time.time() + skew_s, usegmt=True)
    assert finding(examined(Played([reply]))[1], "clock").verdict is Verdict.OK


@pytest.mark.parametrize(
    ("status", "wait_ms", "code", "text", "advice"),
    [
        (401, 0, NOT_AUTHENTICATED, "a tunnel relay answers, but does not know the token", "check it, or ask"),
        (403, 0, DENIED, "a tunnel relay refuses us: HTTP 403, why", "do as it says, or ask"),
        (503, 7000, UNREACHABLE, "a tunnel relay refuses us: HTTP 503, why", "try again, in 7 s"),
    ],
)
def test_a_relay_that_refuses_us_is_told_from_one_that_cannot_be_reached(
    status: int, wait_ms: int, code: int, text: str, advice: str
) -> None:
    works, report = examined(Played([answered("status", status, "why", wait_ms=wait_ms)] * 3))
    found = finding(report, "relay")
    assert not works
    assert (report.exit_code, found.verdict, found.text) == (code, Verdict.PROBLEM, text)
    assert found.advice.startswith(advice)


def test_attempts_that_failed_before_one_worked_are_reported_but_are_no_problem() -> None:
    played = Played([CUT, CUT, answered("attached")])
    works, report = examined(played)
    assert works
    assert (report.exit_code, finding(report, "relay").verdict) == (OK, Verdict.OK)
    found = finding(report, "reliability")
    assert found.verdict is Verdict.NOTE
    assert found.text == "2 of 3 attempts failed first (ServerDisconnectedError)"


def test_a_path_on_which_every_attempt_fails_is_a_problem() -> None:
    works, report = examined(Played([CUT] * 3))
    assert not works
    found = finding(report, "relay")
    assert (report.exit_code, found.verdict, found.data["kind"]) == (UNREACHABLE, Verdict.PROBLEM, "cut")
    assert found.text == "nothing answers at http://relay.invalid (ServerDisconnectedError)"


@pytest.mark.parametrize("kind", ["proxy-password", "certificate"])
def test_what_another_attempt_cannot_change_is_tried_only_once(kind: str) -> None:
    played = Played([ProbeError(Failure(kind, "the proxy asks for Basic: give user and password"))] * 3)
    works, report = examined(played)
    assert not works
    assert played.tries == 1
    if kind == "proxy-password":
        found = finding(report, "proxy login")
        assert (report.exit_code, found.text) == (NOT_AUTHENTICATED, "the proxy asks for Basic")
        assert found.advice == "give user and password"
