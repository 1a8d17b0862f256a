"""The steps that find out how the path treats HTTP connections: reuse, requests at once, waiting and idleness."""

import asyncio

import msgspec

from tunnel.carriers.probes.probe import CountedSession, Reply
from tunnel.ground.printable import counted
from tunnel_client.doctor.answers import described, is_from_limiter, is_silent, tallied
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.trials import ANSWER_S, NOTHING_PASSES, TRIES, Trials, now_s

__all__ = ["examine_at_once", "examine_reuse", "examine_timeouts"]

# Numbers of pulls at once: browsers open 6, so most paths allow that. The next number is tried only if none of the
# pulls was answered.
_PULLS = (6, 3, 2, 1)
HELD_S = 1.0
_REUSES = 2
_HOLD_LANE, _IDLE_LANE = 5, 6
_ACCIDENTS = 2  # this many failures say nothing about waiting requests, if requests fail in other steps, too
_SETTLE_S_MAX = 0.5
_SETTLE_S = 0.1  # time for a hop to notice that HTTP connections were closed
_ENOUGH = 4  # requests at once: two to send, one to wait for data, and one to spare
_TURN_S_MIN = 0.03  # faster exchanges depend on the processor more than on hops
_TURN_S_MAX = 1.0  # on slower paths it would take too long to tell a rate from the delay
_TURNS = 4  # exchanges of each lane
# A hop delays requests if the lanes together reach less than this part of the rate that they would have without delays.
_TURNS_PART = 0.4
_TOGETHER = 3  # `examine_timeouts` uses two HTTP connections at the same time; one to spare
_REST_S = 1.0
_DRAINS = 20
_EMPTY_BYTES = 256  # an answer without packets is smaller
_NOT_AT_ONCE = "a limiter, which would refuse requests that come at once, hides how many may wait"
_HTTPS = "an https:// URL may help, since a proxy passes encrypted requests on unread"


async def examine_reuse(report: Report, trials: Trials) -> None:
    """Find out whether an HTTP connection carries several exchanges. If not, all later steps open a new one for each
    exchange."""
    accidents = 1
    for _ in range(TRIES):
        await trials.room(_REUSES, 1)
        await trials.prober.reconnect()  # where only one HTTP connection is possible, it must be this one
        began_s, replies = now_s(), list[Reply]()
        async with trials.prober.own_connection() as own:
            while len(replies) < _REUSES and all(reply.kind == "answer" for reply in replies):
                replies.append(await trials.ask(lambda: _on(trials, own), trials.patience_s()))
            opened = own.opened
        if await trials.is_refused(replies[-1], began_s):
            continue  # a limiter ended the connection
        if not (accidents and is_silent(replies[-1])):
            break
        accidents -= 1
        trials.count(replies[-1:])
    lost = [reply for reply in replies if reply.kind == "lost"]
    if opened <= 1 and not lost:
        report.add("connections", Verdict.OK, "an HTTP connection carries several exchanges", reused=True)
        return
    if trials.is_shut:
        report.add("connections", Verdict.SKIPPED, NOTHING_PASSES)
        return
    trials.prober.is_fresh = True
    await trials.prober.reconnect()  # an idle connection may be all that the path carries at once
    if lost and is_silent(lost[0]):
        text = f"a hop lets one request pass on each HTTP connection, and drops further ones ({lost[0].text})"
        advice = "the tunnel opens new ones, which costs time"
    elif lost:
        text = f"a hop closes HTTP connections after an answer without saying so ({lost[0].text})"
        advice = "the tunnel repeats the exchanges that this loses, which costs time"
    else:
        text = "a hop closes the HTTP connection after each answer"
        advice = f"each exchange then opens a new one, which costs time; {_HTTPS}"
    report.add("connections", Verdict.NOTE, text, advice, reused=False)


async def _on(trials: Trials, own: CountedSession) -> Reply:
    return await trials.prober.exchange(lane=_lane(trials, _IDLE_LANE), own=own)


async def examine_at_once(report: Report, trials: Trials) -> None:
    """Let several requests wait at the relay at once. If a hop makes some of them wait for their
    turn, the answers to these come late."""
    if trials.pause_s:
        report.add("at once", Verdict.SKIPPED, _NOT_AT_ONCE)
        return
    await _drain(trials)
    for count in _PULLS:
        found = await _pull_together(trials, count)
        if found.answered or trials.pause_s:
            break
    # A hop may still have counted an HTTP connection that was just closed, so the better of two tries is right.
    if 0 < found.prompt < _PULLS[0] and not trials.pause_s:
        await asyncio.sleep(_REST_S if found.others else 0)  # and a limit of requests per second some of the last ones
        found = max(found, await _pull_together(trials, count), key=lambda one: one.prompt)
    if trials.pause_s:
        report.add("at once", Verdict.SKIPPED, _NOT_AT_ONCE)
        return
    if not found.answered:
        text = f"no request may wait for {found.held_s:g} s ({tallied(found.others)})"
        report.add("at once", Verdict.SKIPPED, text)
    elif found.prompt == min(_PULLS[0], trials.lanes):
        text = f"{counted(found.prompt, 'request')} may wait at once (more were not tried)"
        report.add("at once", Verdict.OK, text, requests=found.prompt)
        await _examine_turns(report, trials, found.prompt)
    elif found.others and trials.failed and found.answered + _ACCIDENTS >= _PULLS[0]:
        report.add("at once", Verdict.SKIPPED, f"requests fail here in any case ({tallied(found.others)})")
    else:
        _few_at_once(report, trials, found)


async def _examine_turns(report: Report, trials: Trials, count: int) -> None:
    """Find out whether a hop delays requests that come too fast. Several lanes are then hardly faster than one."""
    if trials.pause_s or not _TURN_S_MIN < trials.median_s < _TURN_S_MAX or count == 1:
        return
    await trials.room(count * _TURNS)
    began_s = now_s()

    async def push(lane: int) -> int:
        passed = 0
        for _ in range(_TURNS):
            passed += (await trials.ask(lambda: trials.prober.exchange(lane=lane))).kind == "answer"
        return passed

    passed = sum(await asyncio.gather(*(push(lane) for lane in range(count))))
    rate = passed / (now_s() - began_s)
    if rate * trials.median_s < _TURNS_PART * count:
        text = f"about {rate:.0f} requests per second pass, however many leave at once: a hop delays them, or is busy"
        advice = "if there is a limit, ask its operator for a higher one for the relay; the tunnel copes with it"
        report.add("rate limit", Verdict.NOTE, text, advice, requests_per_s=round(rate, 1))


class _Together(msgspec.Struct):
    """The outcome of requests that waited together: how many were answered, and how many of these in time."""

    held_s: float
    answered: int
    prompt: int
    others: list[Reply]


async def _pull_together(trials: Trials, count: int) -> _Together:
    prober = trials.prober
    assert prober.attached is not None
    lanes = range(min(count, prober.attached.lanes))
    await trials.room(len(lanes), len(lanes))
    await prober.reconnect()
    await asyncio.sleep(max(_SETTLE_S, min(trials.worst_s, _SETTLE_S_MAX)))
    held_s = min(HELD_S, prober.attached.hold_ms_max / 1e3)
    latest_s = 1.75 * held_s + 2 * trials.worst_s

    async def pull(lane: int) -> Reply:
        return await trials.ask(lambda: prober.exchange(hold_s=held_s, lane=lane), held_s * count + ANSWER_S)

    replies = await asyncio.gather(*map(pull, lanes))
    await prober.reconnect()
    answered = [reply for reply in replies if reply.kind == "answer"]
    prompt = [reply for reply in answered if reply.seconds <= latest_s]
    others = [reply for reply in replies if reply.kind != "answer"]
    if others:
        await trials.is_refused(others[0], is_alone=False)
    return _Together(held_s, len(answered), len(prompt), others)


def _few_at_once(report: Report, trials: Trials, found: _Together) -> None:
    trials.requests_max = max(1, found.prompt)
    how = "the others wait until one of these is answered"
    if found.others:
        how = f"the others fail ({described(found.others[0])})"
    number = "one request passes" if trials.requests_max == 1 else f"{trials.requests_max} requests pass"
    if found.prompt >= _ENOUGH:
        report.add("at once", Verdict.OK, f"{number} at once, which is enough; {how}", requests=trials.requests_max)
        return
    text = f"only {number} at once; {how}"
    advice = f"the tunnel then waits for its turn; ask the operator of the hop to allow at least {_ENOUGH}; {_HTTPS}"
    report.add("at once", Verdict.NOTE, text, advice, requests=trials.requests_max)


async def examine_timeouts(report: Report, trials: Trials, seconds: float) -> None:
    """Find out whether a hop cuts a waiting request or an idle HTTP connection.

    Watch both for `seconds`, at the same time if the path carries enough requests at once.
    """
    prober = trials.prober
    assert prober.attached is not None
    held_s = min(seconds, prober.attached.hold_ms_max / 1e3)
    together = not (0 < trials.requests_max < _TOGETHER or trials.pause_s)
    if prober.is_fresh:
        report.begin("letting a request wait", held_s)
        held, rested = await _hold(trials, held_s), False
    else:
        held, rested = await _hold_and_rest(report, trials, held_s, seconds, together=together)
    if held.kind == "answer" and held.bytes >= _EMPTY_BYTES:
        report.add("hold limit", Verdict.SKIPPED, "the relay had something to send all the time")
    elif held.kind == "answer":
        text = f"a request may wait for {held_s:g} s (longer was not tried: --watch)"
        report.add("hold limit", Verdict.OK, text, hold_s=held_s)
    elif trials.is_shut:
        report.add("hold limit", Verdict.SKIPPED, NOTHING_PASSES)
    elif is_from_limiter(held) or held.status == 407:
        report.add("hold limit", Verdict.SKIPPED, f"something else answered in place of the relay ({described(held)})")
    else:
        text = f"a waiting request is ended after {held.seconds:.1f} s ({described(held)})"
        advice = "the tunnel then uses shorter waits and more requests; ask the hop's operator for a longer timeout"
        report.add("hold limit", Verdict.NOTE, text, advice, hold_s=held.seconds, status=held.status)
    if prober.is_fresh:
        report.add("idle limit", Verdict.SKIPPED, "an HTTP connection carries only one exchange")
    elif trials.is_shut:
        report.add("idle limit", Verdict.SKIPPED, NOTHING_PASSES)
    elif rested:
        text = f"an HTTP connection may be idle for {seconds:g} s (longer was not tried: --watch)"
        report.add("idle limit", Verdict.OK, text, idle_s=seconds)
    else:
        text = f"an HTTP connection that is idle for {seconds:g} s is closed"
        report.add("idle limit", Verdict.NOTE, text, "the tunnel opens new ones, which costs time", idle_s=0)


async def _hold_and_rest(
    report: Report, trials: Trials, held_s: float, seconds: float, *, together: bool
) -> tuple[Reply, bool]:
    report.begin("letting a request and a connection wait", seconds if together else held_s + seconds)
    if trials.pause_s:  # each new connection may be one too many
        return await _hold(trials, held_s), await _rest(trials, seconds)
    await trials.prober.reconnect()
    if together:
        return await asyncio.gather(_hold(trials, held_s), _rest(trials, seconds))
    held = await _hold(trials, held_s)
    await trials.prober.reconnect()
    return held, await _rest(trials, seconds)


async def _hold(trials: Trials, seconds: float) -> Reply:
    """Return the reply that ended a request which the relay may hold for `seconds`. Try again if it ended early, or if
    the first answer did not come, which may be an accident."""
    for number in range(TRIES):
        reply = await trials.once(
            lambda: trials.prober.exchange(hold_s=seconds, lane=_lane(trials, _HOLD_LANE)),
            seconds + trials.patience_s(),
            is_test=True,
        )
        if is_silent(reply) and not number:
            trials.count([reply])
        elif reply.seconds > seconds / 2 or (reply.kind == "answer" and reply.bytes < _EMPTY_BYTES):
            break  # else try again: it failed early, or packets that came for us answered it
    return reply


def _lane(trials: Trials, lane: int) -> int:
    assert trials.prober.attached is not None
    return min(lane, trials.prober.attached.lanes - 1)


async def _drain(trials: Trials) -> None:
    """Fetch what waits at the relay, since a request is not held while something does."""
    for _ in range(_DRAINS):
        reply = await trials.once(trials.prober.exchange, is_test=True)
        if reply.kind == "answer" and reply.bytes < _EMPTY_BYTES:
            break


async def _rest(trials: Trials, seconds: float) -> bool:
    """Return whether an HTTP connection was still usable after it had been idle. Try again if only an answer was late,
    which befalls connections that are in use as well."""
    accidents = 1
    for _ in range(TRIES):
        trips = trials.trips
        await trials.room(1, 1)
        async with trials.prober.own_connection() as own:
            first = await trials.once(lambda: _on(trials, own), trials.patience_s(), is_test=True)
            opened = own.opened
            await asyncio.sleep(seconds if first.kind != "lost" else 0)
            reply = await trials.once(lambda: _on(trials, own), trials.patience_s(), is_test=True)
            is_usable = own.opened == opened and reply.kind != "lost"
        if accidents and (is_silent(first) or is_silent(reply)):
            accidents -= 1
            trials.count([first if is_silent(first) else reply])
        elif trials.trips == trips:
            break  # else a limiter ended the connection
    return is_usable
