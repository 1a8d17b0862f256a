"""The steps that find out how the path delays, buffers, repeats, caches, alters, limits and cuts exchanges."""

import asyncio
import statistics
import time
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from tunnel.carriers.probe import ProbeError, Prober
from tunnel_client.doctor.findings import Report, Verdict

__all__ = ["examine_path", "examine_timeouts"]

ANSWER_S = 10.0
ROUNDS = 10
LOAD_S = 2.0
LOAD_LANES = 4
_SAMPLE_BYTES = 64 << 10
_LEAST_BODY_BYTES = 16 << 10
_WITHHELD_S = 3.0
_T = TypeVar("_T")


async def examine_path(report: Report, prober: Prober) -> None:
    """Run the steps that take little time. A failed exchange ends its step with a note."""
    for step in (_latency, _buffering, _caching, _altering, _body_limit):
        try:
            await step(report, prober)
        except (ProbeError, TimeoutError) as error:
            name = step.__name__.strip("_").replace("_", " ")
            text = f"an exchange failed on the way ({str(error) or 'no answer in time'})"
            report.add(name, Verdict.NOTE, text, "lost exchanges are repeated, which costs time")


async def _latency(report: Report, prober: Prober) -> None:
    seconds, serials = [], []
    for _ in range(ROUNDS):
        reply = await _soon(prober.exchange())
        seconds.append(reply.seconds)
        serials.append(reply.serial)
    middle_ms, worst_ms = round(statistics.median(seconds) * 1e3, 1), round(max(seconds) * 1e3, 1)
    text = f"an exchange takes {middle_ms:g} ms, at worst {worst_ms:g} ms"
    report.add("latency", Verdict.OK, text, median_ms=middle_ms, worst_ms=worst_ms)
    answers = [serial for serial in serials if serial]
    extra = answers[-1] - answers[0] - (len(answers) - 1) if answers else 0
    if extra > 0:
        text = f"requests reached the relay more than once ({extra} of {len(answers)})"
        report.add("repeats", Verdict.NOTE, text, "the relay recognises repeats; they cost bandwidth", repeated=extra)
    else:
        report.add("repeats", Verdict.OK, "each request reaches the relay once", repeated=0)


async def _buffering(report: Report, prober: Prober) -> None:
    is_passed_on, reply = await _soon(prober.unfinished(_WITHHELD_S))
    if is_passed_on:
        report.add("buffering", Verdict.OK, "requests are passed on while they are sent", collects=False)
    elif reply.kind == "status":
        text = "a hop collects whole requests before it passes them on"
        advice = "exchanges work nevertheless; a carrier that streams its requests would not"
        report.add("buffering", Verdict.NOTE, text, advice, collects=True)
    else:
        text = f"something other than a relay answered (HTTP {reply.status} {reply.text})"
        report.add("buffering", Verdict.SKIPPED, text)


async def _caching(report: Report, prober: Prober) -> None:
    await _soon(prober.exchange())
    first, second = await _soon(prober.repeat()), await _soon(prober.repeat())
    if first.serial and first.serial == second.serial:
        text = "a hop answers from its cache instead of asking the relay"
        report.add("caching", Verdict.NOTE, text, "the tunnel recognises old answers; they cost time", cached=True)
    else:
        report.add("caching", Verdict.OK, "every request is answered by the relay itself", cached=False)


async def _altering(report: Report, prober: Prober) -> None:
    damaged = 0
    for _ in range(3):
        reply = await _soon(prober.exchange(_SAMPLE_BYTES))
        damaged += reply.kind == "damaged" or (reply.kind == "status" and reply.status == 400)
    if damaged:
        text = f"{damaged} of 3 exchanges arrived altered"
        report.add("altering", Verdict.NOTE, text, "the tunnel repeats them; https:// prevents it", altered=damaged)
    else:
        report.add("altering", Verdict.OK, "data arrives unaltered", altered=0)


async def _body_limit(report: Report, prober: Prober) -> None:
    assert prober.attached is not None
    most = size = prober.attached.body_bytes_max
    reply = None
    while size >= _LEAST_BODY_BYTES:
        reply = await _soon(prober.exchange(size))
        if reply.kind == "answer":
            break
        size //= 2
    else:
        status = reply.status if reply is not None else 0
        text = f"not even bodies of {_LEAST_BODY_BYTES >> 10} KiB pass (HTTP {status})"
        report.add("body limit", Verdict.PROBLEM, text, "ask the network's operator to allow more", body_bytes=0)
        return
    if size == most:
        text = f"bodies of {size >> 10} KiB pass, the largest that the relay accepts"
        report.add("body limit", Verdict.OK, text, body_bytes=size)
    else:
        text = f"a hop refuses bodies beyond {2 * size >> 10} KiB; {size >> 10} KiB pass"
        report.add("body limit", Verdict.NOTE, text, "smaller bodies are used, which is slower", body_bytes=size)
    await _throughput(report, prober, size)


async def _throughput(report: Report, prober: Prober, size: int) -> None:
    """Measure the throughput towards the relay. It has no data for us, so the other direction is not measured."""
    assert prober.attached is not None
    ends = time.monotonic() + LOAD_S
    began = time.monotonic()

    async def load(lane: int) -> int:
        sent = 0
        while time.monotonic() < ends:
            sent += size * ((await prober.exchange(size, lane=lane)).kind == "answer")
        return sent

    lanes = range(1, 1 + min(LOAD_LANES, prober.attached.lanes - 1))
    sent = sum(await _soon(_all(load, lanes), LOAD_S + ANSWER_S))
    speed = sent / (time.monotonic() - began) / (1 << 20)
    text = f"{speed:.1f} MiB/s towards the relay, over {len(lanes)} lanes for {LOAD_S:g} s (towards us: not tried)"
    report.add("throughput", Verdict.OK, text, up_mib_s=round(speed, 2))


async def examine_timeouts(report: Report, prober: Prober, seconds: float) -> None:
    """Find out whether a hop cuts a waiting request or an idle connection; watch both together for `seconds`."""
    assert prober.attached is not None
    held_s = min(seconds, prober.attached.hold_ms_max / 1e3)
    held, rested = await asyncio.gather(_hold(prober, held_s), _rest(prober, seconds), return_exceptions=True)
    if isinstance(held, BaseException):
        text = f"a waiting request is cut ({str(held) or 'no answer in time'})"
        report.add("hold limit", Verdict.NOTE, text, "the tunnel waits less, which costs requests")
    elif held < 0:
        text = f"a waiting request is ended after {-held:.1f} s"
        report.add("hold limit", Verdict.NOTE, text, "the tunnel waits less, which costs requests", hold_s=-held)
    else:
        text = f"a request may wait for {held_s:g} s (longer was not tried: --watch)"
        report.add("hold limit", Verdict.OK, text, hold_s=held_s)
    if isinstance(rested, BaseException) or not rested:
        text = f"a connection that is idle for {seconds:g} s is closed"
        report.add("idle limit", Verdict.NOTE, text, "the tunnel opens new ones, which costs time", idle_s=0)
    else:
        text = f"a connection may be idle for {seconds:g} s (longer was not tried: --watch)"
        report.add("idle limit", Verdict.OK, text, idle_s=seconds)


async def _hold(prober: Prober, seconds: float) -> float:
    """Return how long the request was held; negative if something other than the relay's answer ended it."""
    lane = LOAD_LANES + 1
    reply = await _soon(prober.exchange(hold_s=seconds, lane=lane), seconds + ANSWER_S)
    return reply.seconds if reply.kind == "answer" else -reply.seconds


async def _rest(prober: Prober, seconds: float) -> bool:
    """Return whether a connection was still usable after it had been idle."""
    lane = LOAD_LANES + 2
    async with prober.own_connection() as own:
        await _soon(prober.exchange(lane=lane, own=own))
        await asyncio.sleep(seconds)
        await _soon(prober.exchange(lane=lane, own=own))
        return own.opened == 1


async def _all(work: Callable[[int], Coroutine[Any, Any, int]], lanes: range) -> list[int]:
    return await asyncio.gather(*map(work, lanes))


async def _soon(work: Coroutine[Any, Any, _T], seconds: float = ANSWER_S) -> _T:
    async with asyncio.timeout(seconds):
        return await work
