"""The steps that find out which carriers work, how reliably, how fast, and how many requests may come in a second."""

import asyncio
import re
import statistics
from collections.abc import Sequence
from dataclasses import replace

from tunnel import TunnelError, UnreachableError
from tunnel.carriers.probes.probe import Reply
from tunnel.ground.carrier_names import CARRIERS
from tunnel.ground.exit_codes import UNREACHABLE
from tunnel.ground.printable import counted
from tunnel_client.doctor.answers import NO_CACHE, REFUSALS_OF_RATE, tallied
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.size_steps import find_vanishing
from tunnel_client.doctor.trials import PAUSE_S, TRIES, Trials, now_s
from tunnel_client.settings import RelaySettings

__all__ = ["examine_link", "examine_others", "examine_poll"]

_EXAMINED = ("auto", "poll", "link")  # auto chooses among the others; poll and link have steps of their own

# Exchanges that all pass are enough: further steps send more, and they fit into the first window with the two of
# `find_vanishing`.
ROUNDS_GOOD = 5
ROUNDS = 20  # a hop that answers every tenth request itself, in place of the relay, shows in half as many
_ROUNDS_MIN = 3
_ROUNDS_S = 5.0  # on a slow path, stop after this time
_SLOW_S = 0.5
LINK_S = 5.0
_REFUSED_PART = 0.3  # a hop that limits the rate refuses more than this part of requests that follow each other at once
REST_S = 1.0  # after this pause, a limit of requests per second counts none of the earlier requests
_GENTLE = 4
QUEUE_S = 0.3  # exchanges that take longer may wait for their turn at a hop
_AT_ONCE_PART = 0.25  # one after a rest takes at most this part of their time, if they do
_ATTACH_S = 5.0
_ATTACH_REQUESTS, _ATTACH_CONNECTIONS = 8, 2  # what an attach with a carrier takes, at most
_STATUS = re.compile(r"HTTP (\d+) ")
_HTML = re.compile(r"<[^>]*>?")


async def examine_poll(report: Report, trials: Trials) -> bool:
    """Send exchanges one after the other; report what came, and how long they took. Return whether any worked."""
    replies: list[Reply] = []
    ends_s = now_s() + _ROUNDS_S
    rounds = ROUNDS_GOOD
    while len(replies) < rounds and (now_s() < ends_s or len(replies) < _ROUNDS_MIN) and not trials.is_shut:
        replies.append(await trials.once(trials.prober.exchange, is_test=True))
        if replies[-1].kind != "answer" or trials.limiter is not None:
            rounds = ROUNDS
    good = [reply for reply in replies if reply.kind == "answer"]
    bad = [reply for reply in replies if reply.kind != "answer"]
    is_limited = bool(bad) and await _is_limited(trials, replies, good)
    trials.made += len(replies)
    if not is_limited:
        trials.failed += bad
    if _report_stale(report, replies):
        return False
    if not good:
        span = f"none of {counted(len(replies), 'exchange')} was answered by the relay"
        if trials.is_shut and trials.limiter is not None:
            span = f"the relay answered no exchange for {trials.limiter.lasted_s:.0f} s"
        text = f"{span} ({tallied(bad)})"
        advice = "a relay answered once before: run this again, and ask the network's operator if this line stays"
        report.add("poll", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, carrier="poll", works=False)
        return False
    if trials.limiter is None:
        trials.worst_s = max(reply.seconds for reply in good)
        trials.vanishing = await find_vanishing(trials)
    text = "small exchanges work" if trials.vanishing else "exchanges work: the tunnel can carry everything"
    report.add("poll", Verdict.OK, text, carrier="poll", works=True)
    await _examine_queue(report, trials, good)
    _report_latency(report, trials, good)
    _report_repeats(report, good, len(bad))
    return True


def _report_stale(report: Report, replies: Sequence[Reply]) -> bool:
    """Report a hop that answers most requests from its cache. Return whether one does."""
    stale = sum(reply.kind == "stale" for reply in replies)
    if 2 * stale <= len(replies):
        return False
    text = f"a hop answers from its cache in place of the relay: of {counted(len(replies), 'exchange')}, {stale} got "
    report.add("caching", Verdict.PROBLEM, f"{text}the answer to another one", NO_CACHE, cached=True)
    return True


async def _is_limited(trials: Trials, replies: Sequence[Reply], good: list[Reply]) -> bool:
    """Return whether the failures come from a limit of requests per second: at a slow pace, all are answered.

    Such answers are added to `good`.
    """
    refused = [reply for reply in replies if reply.kind == "foreign" and reply.status in REFUSALS_OF_RATE]
    if len(refused) < _REFUSED_PART * len(replies):
        return False
    await asyncio.sleep(REST_S)
    for _ in range(_GENTLE):
        await asyncio.sleep(PAUSE_S)
        reply = await trials.ask(trials.prober.exchange)
        if reply.kind != "answer":
            return False
        good.append(reply)
    trials.limit(refused[0])
    return True


async def _examine_queue(report: Report, trials: Trials, good: list[Reply]) -> None:
    """Find out whether exchanges are slow because a hop lets them wait for their turn: after a rest, one is fast.

    The slow ones are then taken out of `good`, because they say nothing about the delay of the path.
    """
    seconds = statistics.median(reply.seconds for reply in good)
    if seconds < QUEUE_S or trials.limiter is not None:
        return
    await asyncio.sleep(2 * seconds)
    reply = await trials.ask(trials.prober.exchange)
    if reply.kind != "answer" or reply.seconds > _AT_ONCE_PART * seconds:
        return
    good[:] = [reply]
    trials.slow_down(1.2 * seconds)
    text = f"a hop lets about one request pass every {seconds:.1f} s and delays the others"
    advice = "ask its operator for a higher rate for the relay"
    report.add("rate limit", Verdict.NOTE, text, advice, requests_per_s=round(1 / seconds, 1))


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


def _report_repeats(report: Report, good: Sequence[Reply], failed: int) -> None:
    """Report requests that came twice. Each one that failed may have reached the relay, and lost only its answer."""
    serials = [reply.serial for reply in good if reply.serial]
    extra = serials[-1] - serials[0] - (len(serials) - 1) - failed if serials else 0
    if extra > 0:
        text = f"requests reached the relay more than once ({extra} of {len(serials)})"
        report.add("repeats", Verdict.NOTE, text, "the relay recognises repeats; they cost bandwidth", repeated=extra)
    else:
        report.add("repeats", Verdict.OK, "each request reaches the relay once", repeated=0)


async def examine_link(report: Report, trials: Trials) -> bool:
    """Try to open a link, and to move data each way on it. Return whether that works."""
    reason = await _upgraded(trials, is_websocket=False)
    if not reason:
        text = "connections can be upgraded, and data passes both ways: the fastest carrier"
        report.add("link", Verdict.OK, text, carrier="link", works=True)
        return True
    proxy = trials.prober.dialing.proxy
    advice = "without a link, a slower carrier is used"
    if proxy is not None and trials.prober.dialing.tls is None:
        advice += "; with an https:// URL the proxy passes the connection on unread, and a link can work"
    report.add("link", Verdict.NOTE, _why_no_link(reason), advice, carrier="link", works=False)
    return False


async def _upgraded(trials: Trials, *, is_websocket: bool) -> str:
    """Try a link or a websocket; return why it fails. If a limiter refused it, try again."""
    for _ in range(TRIES):
        await trials.spend(1, 1)
        reason = await trials.prober.link(max(LINK_S, 3 * trials.worst_s), is_websocket=is_websocket)
        if not reason or not await trials.is_refused(_as_reply(reason)):
            break
    return reason


def _as_reply(reason: str) -> Reply:
    """Return the reason why an upgrade failed as a reply."""
    status = _STATUS.match(reason)
    if status is None:
        return Reply("lost", 0, reason, 0.0, {})
    return Reply("foreign", int(status[1]), reason, 0.0, {})


async def examine_others(report: Report, trials: Trials, settings: RelaySettings) -> None:
    """Try a websocket, and every carrier that has no step of its own by attaching with it."""
    answers = True
    for carrier in (each for each in CARRIERS if each not in _EXAMINED):
        if carrier == "websocket":
            works = not await _upgraded(trials, is_websocket=True)
        elif trials.vanishing:
            continue  # it needs exchanges
        elif trials.pause_s or trials.requests_max == 1:
            report.add(carrier, Verdict.SKIPPED, _LIMITED if trials.pause_s else _ALONE, carrier=carrier)
            continue
        elif not answers:
            report.add(carrier, Verdict.NOTE, "not tried, because the relay no longer answers", carrier=carrier)
            continue
        else:
            await trials.spend(_ATTACH_REQUESTS, _ATTACH_CONNECTIONS)
            try:
                works = await _is_usable(replace(settings, carrier=carrier))
            except UnreachableError:
                works = answers = False
            if not works and await trials.is_refused(_UNCLEAR):
                report.add(carrier, Verdict.SKIPPED, _LIMITED, carrier=carrier)
                continue
        verdict = Verdict.OK if works else Verdict.NOTE
        text = _TEXTS.get(carrier, ("works", "does not work here"))[not works]
        report.add(carrier, verdict, text, carrier=carrier, works=works)


_UNCLEAR = Reply("lost", 0, "the attach failed", 0.0, {})
_LIMITED = "a limiter lets few requests pass"
_ALONE = "it needs two requests at once, and one passes"
_TEXTS = {
    "websocket": ("data passes both ways", "does not work here"),
    "stream": (
        "answers can be streamed: data comes without a request for each batch",
        "answers are held back or cut on the way, or the relay does not stream them: each batch needs a request",
    ),
}


async def _is_usable(settings: RelaySettings) -> bool:
    try:
        async with settings.attach(attach_timeout=_ATTACH_S, wait=True) as attachment:
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
