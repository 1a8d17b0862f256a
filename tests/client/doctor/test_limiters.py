"""The whole examination through limiters and filters, in the time of a hurried loop: what each is called, and that the
doctor leaves no ban to the command that follows it."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
from pathlib import Path
from typing import Any

import pytest

from tests.client.doctor.limiters import RESET, SILENCE, Chance, Filter, Late, Queue, Quota, Rule, Weighted, Window
from tests.client.doctor.ruled import OCTETS, RuledProber
from tests.support.hurried_loop import hurried
from tunnel.carriers.probes.probe import ProbeError, Reply
from tunnel.ground.exit_codes import UNREACHABLE
from tunnel_client.doctor.examination import examine
from tunnel_client.doctor.findings import Finding, Report, Verdict
from tunnel_client.doctor.trials import CONNECTIONS, CONNECTIONS_S, GIVE_UP_S, REQUESTS, REQUESTS_S
from tunnel_client.settings import RelaySettings, find_settings

BAD = (Verdict.NOTE, Verdict.PROBLEM)
LIMITS = ("body limit", "answer limit", "hold limit", "idle limit", "connections", "at once", "throughput", "poll")
WATCH_S = 5.0
FORWARD = (4, 2)  # requests and new connections with which a command starts, without waiting for answers


class Examined:
    """The report on a path, and the times of its requests."""

    def __init__(
        self, fake: RuledProber, monkeypatch: pytest.MonkeyPatch, long_s: float = 0.0, carrier: str = "auto"
    ) -> None:
        async def no_https(*arguments: object) -> None:
            """There is nothing at https://."""

        async def usable(settings: RelaySettings) -> bool:
            with contextlib.suppress(ProbeError):
                return (await fake.exchange()).kind == "answer"
            return False

        monkeypatch.setattr("tunnel_client.doctor.examination.Prober", lambda dialing: fake)
        monkeypatch.setattr("tunnel_client.doctor.examination._examine_https", no_https)
        monkeypatch.setattr("tunnel_client.doctor.carrier_steps._is_usable", usable)
        self.fake = fake
        self.report = Report(
            "http://relay.invalid", told=lambda finding: self._note(), begun=lambda is_news: self._note()
        )
        self.notes: list[tuple[float, float]] = []
        self.carrier = carrier
        self.forwarded = hurried(self._examine(long_s))
        self.found: dict[str, Finding] = {}
        for one in self.report.findings:
            assert one.step not in self.found, f"two verdicts for {one.step}"
            self.found[one.step] = one

    def _note(self) -> None:
        """Note when something was found or begun, and for how long it was said to take."""
        self.notes.append((asyncio.get_running_loop().time(), self.report.takes_s))

    async def _examine(self, long_s: float) -> list[str]:
        """Examine, and start a command at once. Return the kinds of what answered that command."""
        settings = find_settings(relay="http://relay.invalid", proxy=None, insecure_http=True, carrier=self.carrier)
        await examine(self.report, settings, None, WATCH_S, {}, long_s)
        self.took_s = asyncio.get_running_loop().time()
        self.count = len(self.fake.asked)
        await self.fake.reconnect()
        requests, connections = FORWARD
        kinds = []
        for _ in range(requests // connections):
            asks = (self.fake.exchange(lane=lane) for lane in range(connections))
            replies = await asyncio.gather(*asks, return_exceptions=True)
            kinds += [reply.kind if isinstance(reply, Reply) else "lost" for reply in replies]
        return kinds

    @property
    def silence_s(self) -> float:
        """The longest time in which nothing was found, besides what had been announced."""
        times = [*self.notes, (self.took_s, 0.0)]
        return max(after - at - takes for (at, takes), (after, _) in itertools.pairwise(times))

    @property
    def bad(self) -> set[str]:
        """The steps in LIMITS that say that a limit was found."""
        return {step for step in LIMITS if step in self.found and self.found[step].verdict in BAD}

    def most(self, window_s: float, *, opens: bool = False) -> int:
        """The most requests, or new connections, of the examination in any window."""
        times = [one.at_s for one in self.fake.asked[: self.count] if one.opens or not opens]
        return max(sum(at_s <= one < at_s + window_s for one in times) for at_s in times)


@pytest.fixture
def examined(home: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setenv("TUNNEL_TOKEN", "tnl_x")
    return lambda *rules, long_s=0.0, carrier="auto", **options: Examined(
        RuledProber(*rules, **options), monkeypatch, long_s, carrier
    )


@pytest.mark.parametrize("has_link", [False, True])
def test_on_a_healthy_path_the_budget_is_kept_and_no_limiter_is_seen(examined: Any, has_link: bool) -> None:
    seen = examined(has_link=has_link)
    assert seen.report.exit_code == 0
    assert not seen.bad | ({"rate limit", "filter"} & seen.found.keys())
    assert seen.most(REQUESTS_S) <= REQUESTS
    assert seen.most(CONNECTIONS_S, opens=True) <= CONNECTIONS
    assert seen.took_s < 12  # 5 s of them for --watch
    assert seen.silence_s < 2


LIMITERS: dict[str, tuple[Any, str]] = {
    "429 above 20 requests in 5 s": (lambda: Window(20, 5.0), "HTTP 429"),
    "429 above 20 requests in 10 s": (lambda: Window(20, 10.0), "HTTP 429"),
    "503 and Retry-After": (lambda: Window(20, 5.0, 503, ban_s=5, retry_after_s=5), "asks to wait 5 s"),
    "503 and a long Retry-After": (lambda: Window(20, 5.0, 503, ban_s=20, retry_after_s=20), "asks to wait 20 s"),
    "403 after a burst, renewed": (lambda: Window(12, 1.0, 403, ban_s=10, renews=True), "refused everything for"),
    "429, renewed": (lambda: Window(12, 1.0, 429, ban_s=10, renews=True), "refused everything for"),
    "silence after a burst": (lambda: Window(20, 5.0, SILENCE, ban_s=30), "no answer within"),
    "resets after a burst": (lambda: Window(20, 5.0, RESET, ban_s=15), "the connection was closed"),
    "5 connections in 10 s, reset": (lambda: Window(5, 10.0, RESET, counts="connections"), "the connection was closed"),
    "5 connections in 10 s, 403": (lambda: Window(5, 10.0, 403, counts="connections"), "HTTP 403"),
    "5 connections in 10 s, counted in periods": (
        lambda: Weighted(5, 10.0, RESET, counts="connections"),
        "the connection was closed",
    ),
    "5 connections in 10 s, counted in periods, 403": (
        lambda: Weighted(5, 10.0, 403, counts="connections", begin_s=5),
        "HTTP 403",
    ),
    "5 connections in 10 s, 429": (lambda: Window(5, 10.0, 429, counts="connections"), "HTTP 429"),
    "a quota of 4 MiB": (lambda: Quota(1 << 20, 20.0), "MiB in"),
    "a quota that resets": (lambda: Quota(1 << 20, 20.0, RESET), "MiB in"),
}


@pytest.mark.parametrize("name", LIMITERS)
def test_a_limiter_has_one_verdict_is_waited_out_and_leaves_no_ban(examined: Any, name: str) -> None:
    make, words = LIMITERS[name]
    seen = examined(make())
    assert seen.report.exit_code == 0, seen.report.findings
    assert words in seen.found["rate limit"].text
    assert seen.bad == set()
    assert seen.found["reliability"].verdict is Verdict.OK, seen.found["reliability"]
    assert set(seen.forwarded) == {"answer"}
    assert seen.report.summary.startswith("the tunnel works here")


FIRST: dict[str, tuple[Any, str]] = {
    "429 for 12 s": (lambda: Window(50, 5.0, 429, banned_until_s=12.0), "refused everything for"),
    "429 for 20 s, which each request renews": (
        lambda: Window(50, 5.0, 429, ban_s=20, renews=True, banned_until_s=5.0),
        "refused everything for",
    ),
    "503 and Retry-After": (lambda: Window(50, 5.0, 503, retry_after_s=20, banned_until_s=18.0), "asks to wait 20 s"),
    "429 for 2 s": (lambda: Window(50, 5.0, 429, banned_until_s=2.0), "HTTP 429"),
}


@pytest.mark.parametrize("name", FIRST)
def test_a_limiter_that_refuses_the_first_request_is_waited_out_and_leaves_no_ban(examined: Any, name: str) -> None:
    make, words = FIRST[name]
    seen = examined(make())
    assert seen.report.exit_code == 0, seen.report.findings
    assert seen.found["relay"].verdict is Verdict.OK
    assert words in seen.found["rate limit"].text
    assert seen.found["rate limit"].data["requests"] == 1
    assert seen.bad == set()
    assert set(seen.forwarded) == {"answer"}


@pytest.mark.parametrize("retry_after_s", [0, 3600])
def test_a_limiter_that_refuses_every_request_is_the_problem_and_no_other_server(
    examined: Any, retry_after_s: int
) -> None:
    seen = examined(Window(0, 1e9, 429, retry_after_s=retry_after_s))
    assert seen.report.exit_code == UNREACHABLE
    assert seen.found["rate limit"].verdict is Verdict.PROBLEM
    assert "relay" not in seen.found
    assert "any more" not in seen.found["rate limit"].text
    assert seen.took_s <= GIVE_UP_S * 2
    if retry_after_s:
        assert "asks to wait 3600 s" in seen.found["rate limit"].text
        assert seen.count == 1


def test_an_error_of_a_server_before_the_first_answer_is_no_limiter(examined: Any) -> None:
    seen = examined(Window(50, 5.0, 503, banned_until_s=1.5))
    assert "rate limit" not in seen.found
    assert seen.found["first answer"].data == {"failed": 2}
    assert seen.report.exit_code == 0


def test_silence_that_ends_before_the_next_question_is_called_an_accident_and_no_limit(examined: Any) -> None:
    seen = examined(Window(5, 10.0, SILENCE, counts="connections"))
    assert seen.report.exit_code == 0
    assert seen.bad == set()
    assert "times no answer within" in seen.found["reliability"].text
    assert set(seen.forwarded) == {"answer"}


@pytest.mark.parametrize("status", [429, SILENCE])
@pytest.mark.parametrize("begin_s", [None, 0.0, 1.0, 2.0, 3.0, 4.0, 4.9])
def test_a_limit_of_50_requests_in_5_s_is_never_reached(examined: Any, begin_s: float | None, status: int) -> None:
    exact = Window(50, 5.0, status, ban_s=30)
    seen = examined(exact if begin_s is None else Weighted(50, 5.0, status, ban_s=30, begin_s=begin_s))
    assert seen.fake.refused == 0
    assert set(seen.forwarded) == {"answer"}


@pytest.mark.parametrize("status", [429, 403, 503])
def test_one_request_a_second_is_enough_for_the_whole_examination(examined: Any, status: int) -> None:
    seen = examined(Window(1, 1.0, status))
    assert seen.report.exit_code == 0, seen.report.findings
    assert seen.bad == set()
    assert seen.found["rate limit"].data["status"] == status
    assert seen.forwarded[0] == "answer" or seen.forwarded[1] == "answer"


@pytest.mark.parametrize("status", [403, 429, 503])
@pytest.mark.parametrize("rate", [3, 10])
def test_a_limit_of_some_requests_per_second_is_told_from_faults(examined: Any, status: int, rate: int) -> None:
    seen = examined(Window(1, 1 / rate, status, counts_refused=False))
    assert seen.report.exit_code == 0
    assert seen.bad == set()
    assert f"HTTP {status}" in seen.found["rate limit"].text
    assert 1 <= seen.found["rate limit"].data["requests_per_s"] <= rate


@pytest.mark.parametrize("every", [2, 3, 4, 10])
@pytest.mark.parametrize("status", [403, 503, RESET])
def test_answers_that_fail_at_regular_intervals_hide_no_size(examined: Any, every: int, status: int) -> None:
    seen = examined(Chance(every, status))
    assert seen.found["body limit"].verdict is Verdict.OK
    assert seen.found["answer limit"].verdict is Verdict.OK
    assert seen.report.exit_code == 0
    assert "times" in seen.found["reliability"].text


@pytest.mark.parametrize(("rule", "rate"), [(Queue(1.0), 1), (Queue(2.0), 2), (Queue(0.5), 0.5)])
def test_a_queue_is_told_from_a_slow_path_by_a_rest(examined: Any, rule: Rule, rate: float) -> None:
    seen = examined(rule)
    assert seen.found["rate limit"].data["requests_per_s"] == pytest.approx(rate, rel=0.2)
    assert seen.found["latency"].verdict is Verdict.OK
    assert seen.bad == set()


def test_a_slow_path_is_no_queue(examined: Any) -> None:
    class Slow(Queue):
        def judge(self, seen: Any) -> Any:
            self.free_s = seen.at_s + 1.0  # no request waits for another one
            return super().judge(seen)

    seen = examined(Slow(1.0))
    assert "rate limit" not in seen.found
    assert seen.found["latency"].verdict is Verdict.NOTE


@pytest.mark.parametrize("status", [403, 429, RESET, SILENCE])
@pytest.mark.parametrize("most", [12, 20, 22, 24, 30, 35, 40, 45, 50])
def test_a_path_that_never_opens_again_is_one_problem_and_ends_the_examination(
    examined: Any, most: int, status: int
) -> None:
    seen = examined(Window(most, 1e9, status, ban_s=1e9))
    assert seen.report.exit_code == 3
    problems = {one.step for one in seen.report.findings if one.verdict is Verdict.PROBLEM}
    assert problems == {"rate limit"}
    assert "nothing passes any more, for " in seen.found["rate limit"].text
    assert seen.bad == set()
    assert seen.found["other steps"].verdict is Verdict.SKIPPED


def test_a_limiter_that_asks_for_more_time_than_an_examination_has_is_not_waited_for(examined: Any) -> None:
    seen = examined(Window(20, 5.0, 503, ban_s=3600, retry_after_s=3600))
    assert seen.found["rate limit"].verdict is Verdict.PROBLEM
    assert "nothing passes any more: HTTP 503, refused, which asks to wait 3600 s" in seen.found["rate limit"].text
    assert seen.took_s < 5


def test_407_from_time_to_time_is_repeated_and_counted_as_what_it_is(examined: Any) -> None:
    for every in (7, 11, 30):
        seen = examined(Chance(every, 407))
        assert seen.report.exit_code == 0
        assert seen.bad == set()
        assert "rate limit" not in seen.found


@pytest.mark.parametrize("status", [403, 413, 415, 400, RESET])
def test_a_filter_for_noise_is_named(examined: Any, status: int) -> None:
    seen = examined(Filter(status, bits=7.2, kinds=(OCTETS,)))
    assert seen.found["filter"].verdict is Verdict.PROBLEM
    assert "bodies that look like noise" in seen.found["filter"].text
    assert seen.bad == set()
    assert seen.report.exit_code == 3


@pytest.mark.parametrize("status", [403, 413, 415, 400, RESET])
def test_a_filter_for_noise_that_lets_text_pass_lets_the_tunnel_pass(examined: Any, status: int) -> None:
    seen = examined(Filter(status, bits=7.2))
    assert seen.found["filter"].verdict is Verdict.NOTE
    assert "64 KiB of noise pass in the form of text (application/json)" in seen.found["filter"].text
    assert seen.found["answer limit"].verdict is Verdict.OK
    assert seen.bad == set()
    assert seen.report.exit_code == 0


@pytest.mark.parametrize(
    ("carrier", "has_link", "verdict"),
    [
        ("auto", True, Verdict.NOTE),
        ("websocket", True, Verdict.NOTE),
        ("poll", True, Verdict.PROBLEM),
        ("link", False, Verdict.PROBLEM),
    ],
)
def test_a_filter_for_noise_does_not_matter_where_a_link_is_used_and_works(
    examined: Any, carrier: str, has_link: bool, verdict: Verdict
) -> None:
    seen = examined(Filter(bits=7.2, kinds=(OCTETS,)), has_link=has_link, carrier=carrier)
    assert seen.found["filter"].verdict is verdict
    assert (seen.report.exit_code == 0) == has_link or carrier == "poll"


@pytest.mark.parametrize("status", [403, 413, RESET])
def test_a_floor_below_what_the_tunnel_needs_is_named_with_what_passes(examined: Any, status: int) -> None:
    seen = examined(Filter(status, size=1000))
    assert seen.found["body limit"].verdict is Verdict.PROBLEM
    assert "more than about 768 bytes, and the tunnel needs 1.5 KiB" in seen.found["body limit"].text
    assert "filter" not in seen.found
    assert "rate limit" not in seen.found


@pytest.mark.parametrize("status", [403, 405, 501, RESET])
def test_a_hop_that_lets_get_alone_pass_is_named(examined: Any, status: int) -> None:
    seen = examined(Filter(status, methods=("GET",)))
    assert seen.report.exit_code == 3
    assert "lets GET requests pass, but no POST" in seen.found["relay"].text


@pytest.mark.parametrize("kind", ["application/json", "text/plain"])
@pytest.mark.parametrize("status", [403, 415])
def test_a_filter_of_types_is_named_with_a_type_that_passes(examined: Any, kind: str, status: int) -> None:
    seen = examined(Filter(status, kinds=(kind,)))
    assert f"refuses bodies of the type {OCTETS}" in seen.found["relay"].text
    assert f"{kind} passes" in seen.found["relay"].text


def test_connections_that_are_cut_at_an_age_are_found_by_a_long_look(examined: Any) -> None:
    seen = examined(life_s=10.0, long_s=70.0)
    found = seen.found["lifetime"]
    assert found.verdict is Verdict.NOTE
    assert "HTTP connections were cut, after about 10 s" in found.text
    assert len(found.data["ages_s"]) >= 5
    assert "lifetime" not in examined(life_s=10.0).found


def test_a_long_look_at_a_healthy_path_finds_nothing(examined: Any) -> None:
    seen = examined(has_link=True, long_s=70.0)
    assert seen.found["lifetime"].verdict is seen.found["link life"].verdict is Verdict.OK
    assert 75 < seen.took_s < 95


def test_a_link_that_is_cut_is_found_by_a_long_look(examined: Any) -> None:
    seen = examined(has_link=True, life_s=20.0, long_s=70.0)
    assert "a link was cut after 20 s" in seen.found["link life"].text


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        (functools.partial(Quota, 4 << 20, 30.0), "MiB in"),
        (functools.partial(Window, 70, 60.0, 503, ban_s=15, retry_after_s=15), "asks to wait 15 s"),
    ],
)
def test_what_refuses_only_after_a_while_is_found_by_a_long_look(examined: Any, rule: Any, words: str) -> None:
    seen = examined(rule(), long_s=70.0)
    assert words in seen.found["rate limit"].text
    assert seen.bad == set()
    assert seen.report.exit_code == 0


@pytest.mark.parametrize("has_link", [False, True])
@pytest.mark.parametrize(
    ("rules", "answers_max", "step", "text"),
    [
        ((), 700, "answer limit", "answers of 0.75 KiB vanish on the way"),
        ((Filter(SILENCE, size=1200),), 1 << 30, "body limit", "requests of 1.5 KiB vanish on the way"),
    ],
)
def test_a_path_that_swallows_what_the_tunnel_needs_is_told_soon(
    examined: Any, rules: tuple[Rule, ...], answers_max: int, step: str, text: str, has_link: bool
) -> None:
    seen = examined(*rules, answers_max=answers_max, has_link=has_link)
    assert seen.found[step].verdict is (Verdict.NOTE if has_link else Verdict.PROBLEM)
    assert text in seen.found[step].text
    assert seen.found["poll"].text == "small exchanges work"
    assert ("link carries" if has_link else "none carries") in seen.found["roads"].text
    assert seen.took_s < 12
    assert seen.bad == {step}


def test_a_path_that_swallows_large_messages_carries_small_ones(examined: Any) -> None:
    seen = examined(answers_max=20_000)
    assert seen.report.exit_code == 0
    assert seen.bad == {"answer limit"}
    assert "answers of 48 KiB vanish on the way, or take too long" in seen.found["answer limit"].text
    assert "; 12 KiB pass" in seen.found["answer limit"].text
    seen = examined(answers_max=1100)
    assert seen.report.exit_code == 0
    assert seen.bad == {"answer limit"}
    assert "; 0.75 KiB pass" in seen.found["answer limit"].text
    assert seen.took_s < 25
    seen = examined(Filter(SILENCE, size=20_000))
    assert seen.report.exit_code == 0
    assert seen.bad == {"body limit"}
    assert "bodies of 24 KiB vanish on the way" in seen.found["body limit"].text
    assert "6 KiB pass" in seen.found["body limit"].text


@pytest.mark.parametrize(
    ("number", "by_s"), [*((number, 10.5) for number in range(1, 60)), *((number, 4.0) for number in range(1, 60, 4))]
)
def test_one_late_answer_is_no_limit_of_the_path(examined: Any, number: int, by_s: float) -> None:
    seen = examined(Late(number, by_s))
    assert seen.report.exit_code == 0
    assert not seen.bad | ({"rate limit", "filter"} & seen.found.keys())
    assert seen.took_s < 30
