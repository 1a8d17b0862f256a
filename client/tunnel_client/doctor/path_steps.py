"""The steps that find out how the path buffers, caches and alters exchanges, and how much it carries."""

import asyncio
import functools

from tunnel.carriers.probes.probe import Reply
from tunnel.ground.printable import counted
from tunnel_client.doctor.answers import described, tallied
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.trials import ANSWER_S, NOTHING_PASSES, WORST, Trials, now_s

__all__ = ["examine_path", "examine_reliability", "examine_throughput"]

LOAD_S = 2.0
LOAD_LANES = 4
LOAD_REQUESTS = 12
_TRANSFERS = 3  # requests in place of this load, if there is a limiter
_SAMPLES = 3
AFTER_FAILURE_S = 0.05
_FAILED_PART = 0.3  # if more than this part of the requests under load fails, a hop cannot carry the load
_SAMPLE_BYTES = 64 << 10
_SMALL_BYTES = 512  # size of the sample if no size of body was found to pass
WITHHELD_S, _WITHHELD_S_MIN = 3.0, 1.0  # on a slow path, and on a fast one


async def examine_path(report: Report, trials: Trials, body_bytes: int) -> None:
    """Run the steps that take little time. `body_bytes`: the largest body that passes, or 0."""
    await _buffering(report, trials)
    await _caching(report, trials)
    await _altering(report, trials, min(body_bytes or _SMALL_BYTES, _SAMPLE_BYTES))
    await _headers(report, trials)


async def _buffering(report: Report, trials: Trials) -> None:
    passed_on: list[bool] = []
    withheld_s = min(WITHHELD_S, max(_WITHHELD_S_MIN, WORST * trials.worst_s))

    async def ask() -> Reply:
        is_early, reply = await trials.prober.send_unfinished(withheld_s)
        passed_on.append(is_early)
        return reply

    reply = await trials.ask_until_answered(ask, WITHHELD_S + ANSWER_S, is_test=True)
    if reply.kind != "status":
        report.add("buffering", Verdict.SKIPPED, f"the relay did not answer an unfinished request ({described(reply)})")
    elif passed_on[-1]:
        report.add("buffering", Verdict.OK, "requests are passed on while they are sent", collects=False)
    else:
        text = "a hop collects whole requests before it passes them on"
        report.add("buffering", Verdict.NOTE, text, "the tunnel sends only whole requests, so it works", collects=True)


async def _caching(report: Report, trials: Trials) -> None:
    prober = trials.prober
    await trials.ask_until_answered(prober.exchange)
    first, second = await trials.ask_until_answered(prober.repeat), await trials.ask_until_answered(prober.repeat)
    if first.kind != "answer" or second.kind != "answer":
        failed = first if first.kind != "answer" else second
        report.add("caching", Verdict.SKIPPED, f"the relay did not answer ({described(failed)})")
    elif first.serial and first.serial == second.serial:
        text = "a hop answers from its cache instead of asking the relay"
        report.add("caching", Verdict.NOTE, text, "the tunnel recognises old answers; they cost time", cached=True)
    else:
        report.add("caching", Verdict.OK, "every request is answered by the relay itself", cached=False)


async def _altering(report: Report, trials: Trials, size: int) -> None:
    prober = trials.prober
    lanes = range(min(_SAMPLES, trials.requests_max or _SAMPLES))
    asks = (functools.partial(prober.exchange, size, lane=lane) for lane in lanes)
    replies = await asyncio.gather(*map(trials.once, asks))
    damaged = [
        reply for reply in replies if reply.kind == "damaged" or (reply.kind == "status" and reply.status == 400)
    ]
    if damaged:
        text = f"{len(damaged)} of {len(replies)} exchanges arrived altered ({damaged[0].text})"
        advice = "the tunnel repeats them; an https:// URL prevents it"
        report.add("altering", Verdict.NOTE, text, advice, altered=len(damaged))
    elif any(reply.kind == "answer" for reply in replies):
        report.add("altering", Verdict.OK, "data arrives unaltered", altered=0)
    else:
        report.add("altering", Verdict.SKIPPED, f"the relay did not answer ({described(replies[0])})")


async def _headers(report: Report, trials: Trials) -> None:
    """Find out whether hops pass on headers that they do not know.

    The header that is sent claims that this is an exit. If it arrives, a relay refuses a user who may not be an exit.
    """
    reply = await trials.ask_until_answered(trials.prober.claim_exit, is_test=True)
    is_kept = reply.kind == "status" or "no-transform" in reply.headers.get("cache-control", "")
    if reply.kind not in ("status", "answer"):
        report.add("headers", Verdict.SKIPPED, f"the relay did not answer ({described(reply)})")
    elif is_kept:
        report.add("headers", Verdict.OK, "headers that hops do not know arrive", stripped=False)
    else:
        text = "a hop removes headers that it does not know"
        report.add("headers", Verdict.NOTE, text, "the tunnel works without them; an exit does not", stripped=True)


async def examine_throughput(report: Report, trials: Trials, size: int) -> None:
    """Measure the throughput towards the relay. The relay has no data for us, so the other direction is not
    measured."""
    prober = trials.prober
    assert prober.attached is not None
    if not size:
        report.add("throughput", Verdict.SKIPPED, "only small bodies pass")
        return
    if trials.pause_s or trials.requests_max == 1:
        await _few_transfers(report, trials, size)
        return
    await trials.room(LOAD_REQUESTS, LOAD_LANES)
    report.begin("measuring the throughput", LOAD_S)
    began_s = now_s()
    replies: list[Reply] = []

    async def load(lane: int) -> int:
        sent = 0
        while now_s() < began_s + LOAD_S and len(replies) < LOAD_REQUESTS:
            reply = await trials.ask(functools.partial(prober.exchange, size, lane=lane))
            replies.append(reply)
            if reply.kind == "answer":
                sent += size
            else:
                await asyncio.sleep(AFTER_FAILURE_S)
        return sent

    lanes = range(1, 1 + min(LOAD_LANES, prober.attached.lanes - 1, trials.requests_max or LOAD_LANES))
    sent = sum(await asyncio.gather(*map(load, lanes)))
    took_s = now_s() - began_s
    speed = sent / took_s / (1 << 20)
    over = f"{len(lanes)} lanes" if len(lanes) > 1 else "one lane"
    text = f"{speed:.1f} MiB/s towards the relay, over {over} for {took_s:.1f} s (towards us: not tried)"
    failed = [reply for reply in replies if reply.kind != "answer"]
    if failed and await trials.is_refused(failed[-1]):
        await _few_transfers(report, trials, size)
    elif trials.is_shut:
        report.add("throughput", Verdict.SKIPPED, NOTHING_PASSES)
    elif not sent:
        _none_passed(report, trials, size, replies)
    elif len(failed) > _FAILED_PART * len(replies):
        text += f"; {len(failed)} of {len(replies)} requests failed ({tallied(failed)})"
        advice = "a hop cannot carry this load; the tunnel sends less when requests fail"
        report.add("throughput", Verdict.NOTE, text, advice, up_mib_s=round(speed, 2), failed=len(failed))
    else:
        trials.count(replies)
        report.add("throughput", Verdict.OK, text, up_mib_s=round(speed, 2))


async def _few_transfers(report: Report, trials: Trials, size: int) -> None:
    """Where few requests may come, send a few bodies of the largest size, one after the other."""
    replies = [await trials.once(functools.partial(trials.prober.exchange, size)) for _ in range(_TRANSFERS)]
    passed = [reply for reply in replies if reply.kind == "answer"]
    if trials.is_shut:
        report.add("throughput", Verdict.SKIPPED, NOTHING_PASSES)
        return
    if not passed:
        _none_passed(report, trials, size, replies)
        return
    speed = size / max(trials.pause_s, *(reply.seconds for reply in passed)) / (1 << 20)
    how = "in requests as frequent as the limiter allows" if trials.pause_s else "in one request after the other"
    text = f"about {speed:.2f} MiB/s towards the relay, {how}"
    report.add("throughput", Verdict.OK, text, up_mib_s=round(speed, 2))


def _none_passed(report: Report, trials: Trials, size: int, replies: list[Reply]) -> None:
    """Report that bodies of a size that passed once do not pass any more."""
    text = f"none of {counted(len(replies), 'request')} of {size >> 10} KiB passed ({tallied(replies)})"
    advice = "requests of that size passed before: run this again, and ask the network's operator if this line stays"
    report.add("throughput", trials.verdict_without_exchanges, text, advice, up_mib_s=0.0)


def examine_reliability(report: Report, trials: Trials) -> None:
    """Report how many exchanges failed that a working path would have answered."""
    failed = trials.failed
    if not failed:
        text = f"the relay answered all {trials.made} exchanges"
        report.add("reliability", Verdict.OK, text, failed=0, made=trials.made)
        return
    number = (
        f"one of {trials.made} exchanges was" if len(failed) == 1 else f"{len(failed)} of {trials.made} exchanges were"
    )
    text = f"{number} not answered by the relay ({tallied(failed)})"
    advice = "lost exchanges are repeated, which costs time"
    report.add("reliability", Verdict.NOTE, text, advice, failed=len(failed), made=trials.made)
