"""The conclusions of the doctor from its first requests. tests/client/doctor/test_examination.py has real relays."""

from __future__ import annotations

import time
from email.utils import formatdate

import pytest

from tests.client.doctor.prober import Asked, FakeProber, answered, cut, finding, foreign, trials
from tests.support.loops import run
from tunnel.carriers.dialing.failures import Failure
from tunnel.carriers.probes.probe import ProbeError, Reply
from tunnel.ground.exit_codes import DENIED, INTEGRITY, NOT_AUTHENTICATED, OK, UNREACHABLE
from tunnel.wire import BodyFormat
from tunnel_client.doctor.findings import Finding, Report, Verdict
from tunnel_client.doctor.relay_steps import examine_relay

CUT = cut("the connection was closed")
PAGE_OF_APACHE = (
    "<html><head><title>403 Forbidden</title></head><address>Apache/2.4.71 (Debian) Server</address></html>"
)
EXPIRED = "the token expired on 2027-01-15 08:00 UTC; ask the operator for a new one"
NO_TOKEN = "no token came: the request has no Authorization header"


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_client.doctor.relay_steps.WAIT_S", 0.0)


def examined(fake: FakeProber) -> tuple[bool, Report]:
    report, works = Report("http://relay.invalid"), []

    async def main() -> None:
        works.append(await examine_relay(report, trials(fake)))

    run(main())
    return works[0], report


RELAY, NGINX = "Python/3.11 aiohttp/3.14.5", "nginx/1.22.1"


def clock_of(reply: Reply, skew_s: int, server: str) -> Finding:
    reply.headers |= {"date": formatdate(time.time() + skew_s, usegmt=True), "server": server}
    return finding(examined(FakeProber([reply] * 3))[1], "clock")


@pytest.mark.parametrize(("skew_s", "ours"), [(3600, "behind"), (-3600, "ahead of")])
def test_a_wrong_clock_is_reported_with_the_direction_in_which_to_set_it(skew_s: int, ours: str) -> None:
    found = clock_of(answered("attached"), skew_s, RELAY)
    assert found.verdict is Verdict.NOTE
    assert f" s {ours} the relay" in found.text
    assert found.advice.startswith("set the clock")
    assert found.data["skew_s"] * skew_s > 0


@pytest.mark.parametrize("skew_s", [-30, 30])
def test_a_clock_that_is_half_a_minute_off_is_good_enough(skew_s: int) -> None:
    found = clock_of(answered("attached"), skew_s, RELAY)
    assert (found.verdict, found.text) == (Verdict.OK, "this machine and the relay agree on the time")


@pytest.mark.parametrize("skew_s", [0, 3600])
def test_the_clock_of_what_is_not_the_relay_is_not_taken_for_the_relay_s(skew_s: int) -> None:
    assert "the hop that answers for the relay" in clock_of(answered("attached"), skew_s, NGINX).text
    assert clock_of(foreign(404), skew_s, NGINX).verdict is Verdict.SKIPPED
    assert clock_of(foreign(403), skew_s, RELAY).verdict is Verdict.SKIPPED


@pytest.mark.parametrize(
    ("status", "why", "wait_ms", "code", "text", "advice"),
    [
        (401, "no such token", 0, NOT_AUTHENTICATED, "a tunnel relay answers, but does not know the token", "check it"),
        (
            401,
            EXPIRED,
            0,
            NOT_AUTHENTICATED,
            "a tunnel relay refuses this user: the token expired on 2027",
            "ask the op",
        ),
        (401, NO_TOKEN, 0, NOT_AUTHENTICATED, "a tunnel relay answers, but the token does not reach it", "ask its"),
        (403, "why", 0, DENIED, "a tunnel relay refuses this user: HTTP 403, why", "do as it says, or ask"),
        (400, "why", 0, INTEGRITY, "a relay answers, but requests reach it damaged: HTTP 400, why", "use an https"),
        (503, "why", 7000, UNREACHABLE, "a tunnel relay refuses this user: HTTP 503, why", "try again, in 7 s"),
    ],
)
def test_the_report_says_why_a_relay_that_answers_does_not_accept_us(
    status: int, why: str, wait_ms: int, code: int, text: str, advice: str
) -> None:
    works, report = examined(FakeProber([answered("status", status, why, wait_ms=wait_ms)] * 3))
    found = finding(report, "relay")
    assert not works
    assert (report.exit_code, found.verdict) == (code, Verdict.PROBLEM)
    assert found.text.startswith(text)
    assert found.advice.startswith(advice)


def test_a_wrong_token_is_sent_only_once() -> None:
    fake = FakeProber([answered("status", 401, "no such token")] * 3)
    examined(fake)
    assert fake.tries == 1


def test_a_missing_token_is_distinguished_from_one_that_a_hop_removed() -> None:
    _, report = examined(FakeProber([answered("status", 401, NO_TOKEN)], token=None))
    found = finding(report, "relay")
    assert found.text == "a tunnel relay answers and asks for a token, but none is set"
    assert "--token-file FILE" in found.advice


@pytest.mark.parametrize("first", [CUT, foreign(200), foreign(503, "", server="nginx")])
def test_failed_attempts_before_one_that_works_are_reported_but_are_no_problem(first: Reply | ProbeError) -> None:
    works, report = examined(FakeProber([first, first, answered("attached")]))
    assert works
    assert (report.exit_code, finding(report, "relay").verdict) == (OK, Verdict.OK)
    found = finding(report, "first answer")
    assert found.verdict is Verdict.NOTE
    assert found.text.startswith("2 of 3 attempts failed first (")


def test_a_path_on_which_every_attempt_fails_is_a_problem() -> None:
    works, report = examined(FakeProber([CUT] * 3))
    assert not works
    found = finding(report, "relay")
    assert (report.exit_code, found.verdict, found.data["kind"]) == (UNREACHABLE, Verdict.PROBLEM, "cut")
    assert found.text == "no relay answers at http://relay.invalid (the connection was closed)"


@pytest.mark.parametrize(
    ("answer", "advice"), [("HTTP 403 Forbidden", "many proxies allow port 443"), ("HTTP 503 No", "it cannot reach")]
)
def test_a_proxy_that_does_not_connect_us_is_distinguished_from_one_that_is_away(answer: str, advice: str) -> None:
    failed = ProbeError(Failure("proxy", f"the proxy answers {answer}"))
    _, report = examined(FakeProber([failed] * 3, url="https://relay.invalid:8443", proxy="http://proxy.invalid:3128"))
    found = finding(report, "relay")
    assert found.text == f"the proxy http://proxy.invalid:3128 does not connect us to relay.invalid:8443 ({answer})"
    assert advice in found.advice
    away = ProbeError(Failure("proxy", "the proxy cannot be reached (the connection was refused)"))
    _, report = examined(FakeProber([away] * 3, proxy="http://proxy.invalid:3128"))
    assert finding(report, "relay").text.startswith("nothing answers at the proxy http://proxy.invalid:3128")


@pytest.mark.parametrize(
    ("kind", "what"), [("proxy-page", "no relay"), ("plain-http", "no relay"), ("refused", "nothing")]
)
def test_nothing_is_said_to_answer_only_where_nothing_did(kind: str, what: str) -> None:
    failed = ProbeError(Failure(kind, "the proxy sends a page", "sign in"))
    _, report = examined(FakeProber([failed] * 3, url="https://relay.invalid", proxy="http://proxy.invalid:3128"))
    found = finding(report, "relay")
    assert (report.exit_code, found.advice) == (UNREACHABLE, "sign in")
    assert found.text == f"{what} answers at https://relay.invalid (the proxy sends a page)"


@pytest.mark.parametrize("kind", ["proxy-password", "certificate"])
def test_no_second_attempt_follows_a_failure_that_it_cannot_change(kind: str) -> None:
    fake = FakeProber([ProbeError(Failure(kind, "the proxy asks for Basic: give user and password"))] * 3)
    works, report = examined(fake)
    assert not works
    assert fake.tries == 1
    if kind == "proxy-password":
        found = finding(report, "proxy login")
        assert (report.exit_code, found.text) == (NOT_AUTHENTICATED, "the proxy asks for Basic")
        assert found.advice == "give user and password"


def test_a_firewall_that_refuses_only_our_type_of_body_is_distinguished_from_a_login_page() -> None:
    blocked = foreign(403, PAGE_OF_APACHE, server="Apache/2.4.71 (Debian)")
    _, report = examined(FakeProber([blocked] * 3))
    found = finding(report, "relay")
    assert found.data["body_type"] == BodyFormat.FORM.value
    assert "refuses bodies of the type application/octet-stream (HTTP 403 from Apache 2.4.71)" in found.text
    assert "multipart/form-data passes" in found.text
    assert "ModSecurity" in found.advice
    _, report = examined(FakeProber([blocked] * 3, path=lambda asked: blocked))
    found = finding(report, "relay")
    assert found.text == "something other than a relay answers (HTTP 403 from Apache 2.4.71)"
    assert "login or block page" in found.advice


def test_the_tunnel_uses_another_type_of_body_if_it_can_attach_with_it() -> None:
    blocked = foreign(403, PAGE_OF_APACHE)
    fake = FakeProber([blocked] * 3, path=lambda asked: answered("attached") if asked.body_type else None)
    works, report = examined(fake)
    found = finding(report, "relay")
    assert works
    assert (report.exit_code, found.verdict) == (OK, Verdict.NOTE)
    assert found.text.endswith("multipart/form-data passes, and the tunnel uses it")


def test_a_firewall_that_passes_only_another_type_of_body_is_reported_with_that_type() -> None:
    def path(asked: Asked) -> Reply | None:
        return foreign(406) if asked.body_type == BodyFormat.FORM.value else None

    _, report = examined(FakeProber([foreign(406)] * 3, path=path))
    assert finding(report, "relay").data["body_type"] == "application/json"


def test_a_redirect_is_reported_with_its_target_and_without_its_query() -> None:
    reply = foreign(302, "", location="http://login.invalid/?secret=1")
    _, report = examined(FakeProber([reply] * 3))
    found = finding(report, "relay")
    assert found.text == "something other than a relay answers and redirects to http://login.invalid/"
    assert "secret" not in repr(report)
