"""The steps that find out which carriers work, how reliably, how fast, and how many requests may come in a second."""

import asyncio
import re
import statistics
import time
from collections.abc import Sequence
from dataclasses import replace

from tunnel import TunnelError, UnreachableError
from tunnel.carriers.probe import Reply
from tunnel.exit_codes import UNREACHABLE
from tunnel_client.doctor.answers import REFUSALS_OF_RATE, described, tallied
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.trials import Trials
from tunnel_client.settings import CARRIERS, RelaySettings

__all__ = ["examine_link", "examine_others", "examine_poll"]

_EXAMINED = ("auto", "poll", "link")  # auto chooses among the others; poll and link have steps of their own

ROUNDS = 20  # a hop that answers every tenth request itself, in place of the relay, shows in half as many
_ROUNDS_MIN = 3
_ROUNDS_S = 5.0  # on a slow path, stop after this time
_SLOW_S = 0.5
LINK_S = 5.0
_REFUSED_PART = 0.3  # a hop that limits the rate refuses more than this part of requests that follow each other at once
REST_S = 1.0  # after this pause, a limit of requests per second counts none of the earlier requests
_GENTLE = 4
GENTLE_S = 0.5  # pause between requests; at this pace all must pass if only the rate is limited
HAMMER_S = 1.5
_HAMMER_PAUSE_S = 0.01
_PAUSE_S_MAX = 2.0
_ATTACH_S = 5.0
_HTML = re.compile(r"<[^>]*>?")


async def examine_poll(report: Report, trials: Trials) -> bool:
    """Send exchanges one after the other; report what came, and how long they took. Return whether any worked."""
    replies: list[Reply] = []
    ends = time.monotonic() + _ROUNDS_S
    while len(replies) < ROUNDS and (time.monotonic() < ends or len(replies) < _ROUNDS_MIN):
        replies.append(await trials.once(trials.prober.exchange(), is_test=True))
    good = [reply for reply in replies if reply.kind == "answer"]
    bad = [reply for reply in replies if reply.kind != "answer"]
    rate = await _rate_limit(trials, replies, good) if bad else None
    trials.made += len(replies)
    if rate is None:
        trials.failed += bad
    if not good and rate is None:
        text = f"none of {len(replies)} exchanges was answered by the relay ({tallied(bad)})"
        advice = "a relay answered once before: run this again, and ask the network's operator if this line stays"
        report.add("poll", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, carrier="poll", works=False)
        return False
    report.add("poll", Verdict.OK, "exchanges work: the tunnel can carry everything", carrier="poll", works=True)
    _report_rate(report, trials, rate, bad)
    _report_latency(report, trials, good)
    _report_repeats(report, good)
    return True


async def _rate_limit(trials: Trials, replies: Sequence[Reply], good: list[Reply]) -> float | None:
    """If the path limits the number of requests per second, return how many pass; otherwise return None.

    The exchanges that leave at a slow pace and are answered are added to `good`.
    """
    refused = [reply for reply in replies if reply.kind == "foreign" and reply.status in REFUSALS_OF_RATE]
    if not any(reply.status == 429 for reply in refused) and len(refused) < _REFUSED_PART * len(replies):
        return None
    await asyncio.sleep(REST_S)
    for _ in range(_GENTLE):
        await asyncio.sleep(GENTLE_S)
        reply = await trials.once(trials.prober.exchange(), is_test=True)
        if reply.kind != "answer":
            return None
        good.append(reply)
    began = time.monotonic()
    passed = 0
    while (took_s := time.monotonic() - began) < HAMMER_S:
        passed += (await trials.once(trials.prober.exchange(), is_test=True)).kind == "answer"
        await asyncio.sleep(_HAMMER_PAUSE_S)
    rate = max(passed / took_s, 1 / GENTLE_S)
    trials.pause_s = min(_PAUSE_S_MAX, 1.5 / rate)
    await asyncio.sleep(REST_S)
    return rate


def _report_rate(report: Report, trials: Trials, rate: float | None, bad: Sequence[Reply]) -> None:
    if rate is None:
        return
    text = f"a hop limits the rate: about {rate:.0f} requests per second pass, others get {described(bad[0])}"
    advice = (
        "ask its operator for a higher rate for the relay; a link, where connections can be upgraded, needs only one "
        "request"
    )
    report.add("rate limit", Verdict.NOTE, text, advice, requests_per_s=round(rate, 1), status=bad[0].status)


def _report_latency(report: Report, trials: Trials, good: Sequence[Reply]) -> None:
    seconds = [reply.seconds for reply in good] or [0.0]
    trials.median_s, trials.worst_s = statistics.median(seconds), max(seconds)
    middle_ms, worst_ms = round(trials.median_s * 1e3, 1), round(trials.worst_s * 1e3, 1)
    text = f"an exchange takes {middle_ms:g} ms, at worst {worst_ms:g} ms"
    verdict, advice = Verdict.OK, ""
    if trials.median_s >= _SLOW_S:
        verdict = Verdict.NOTE
        advice = "whatever you type waits that long; a path through fewer hops may be faster"
    report.add("latency", verdict, text, advice, median_ms=middle_ms, worst_ms=worst_ms)


def _report_repeats(report: Report, good: Sequence[Reply]) -> None:
    serials = [reply.serial for reply in good if reply.serial]
    extra = serials[-1] - serials[0] - (len(serials) - 1) if serials else 0
    if extra > 0:
        text = f"requests reached the relay more than once ({extra} of {len(serials)})"
        report.add("repeats", Verdict.NOTE, text, "the relay recognises repeats; they cost bandwidth", repeated=extra)
    else:
        report.add("repeats", Verdict.OK, "each request reaches the relay once", repeated=0)


async def examine_link(report: Report, trials: Trials) -> None:
    """Try to open a link, and to move a batch each way on it."""
    if trials.pause_s:
        await asyncio.sleep(trials.pause_s)
    reason = await trials.prober.link(max(LINK_S, 3 * trials.worst_s))
    if not reason:
        text = "connections can be upgraded, and data passes both ways: the fastest carrier"
        report.add("link", Verdict.OK, text, carrier="link", works=True)
        return
    proxy = trials.prober.dialing.proxy
    advice = "without a link, a slower carrier is used"
    if proxy is not None and trials.prober.dialing.tls is None:
        advice += "; with an https:// URL the proxy passes the connection on unread, and a link can work"
    report.add("link", Verdict.NOTE, _why_no_link(reason), advice, carrier="link", works=False)


async def examine_others(report: Report, settings: RelaySettings) -> None:
    """Try every carrier that has no step of its own by attaching with it, until one attach gets no answer."""
    answers = True
    for carrier in (each for each in CARRIERS if each not in _EXAMINED):
        if not answers:
            report.add(carrier, Verdict.NOTE, "not tried, because the relay no longer answers", carrier=carrier)
            continue
        try:
            works = await _is_usable(replace(settings, carrier=carrier))
        except UnreachableError:
            works = answers = False
        verdict = Verdict.OK if works else Verdict.NOTE
        text = _TEXTS.get(carrier, ("works", "does not work here"))[not works]
        report.add(carrier, verdict, text, carrier=carrier, works=works)


_TEXTS = {
    "websocket": ("data passes both ways", "does not work here"),
    "stream": (
        "answers can be streamed: data comes without a request for each batch",
        "answers are held back or cut on the way, or the relay does not stream them: each batch needs a request",
    ),
}


async def _is_usable(settings: RelaySettings) -> bool:
    try:
        async with settings.attach(attach_timeout=_ATTACH_S) as attachment:
            return attachment.stats().carrier.startswith(settings.carrier)
    except UnreachableError:
        raise
    except TunnelError:
        return False


def _why_no_link(reason: str) -> str:
    if reason.startswith("HTTP 426") and "Upgrade to tunnel-link" in reason:
        return "connections cannot be upgraded here: a hop removes the header Upgrade"
    if reason.startswith("the connection was upgraded"):
        return f"connections cannot be used after an upgrade: {reason}"
    return f"connections cannot be upgraded here ({' '.join(_HTML.sub(' ', reason).split()).rstrip(': ')})"
