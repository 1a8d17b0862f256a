"""The steps of `--long`: for more than a minute, they look for what shows only after a while.

Hops end connections at an age, count bytes for a quota, or refuse requests after a number of them. The limiters among
these are found as in all steps (`trials`).
"""

import asyncio
import functools

from tunnel.ground.printable import counted
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.trials import Trials, now_s

__all__ = ["LONG_S", "examine_long"]

LONG_S = 70.0  # limits and timeouts of a minute are common
BEAT_S = 1.0
_PART_BYTES = 256 << 10
_LINK_S = 5.0
_OFTEN = 2  # connections that end at an age, and not by accident


async def examine_long(report: Report, trials: Trials, body_bytes: int, seconds: float) -> None:
    """Watch HTTP connections that are in use, and the link if there is one, for `seconds`. Do nothing if that is 0."""
    if not seconds:
        return
    watched = _Watched(min(body_bytes, _PART_BYTES))
    link, began_s = asyncio.ensure_future(_watch_link(trials, seconds)), now_s()
    try:
        await watched.watch(report, trials, began_s + seconds)
        ended = await link
    finally:
        link.cancel()
    _report_lives(report, trials, watched, seconds)
    if trials.has_link:
        _report_link(report, ended, seconds)


class _Watched:
    """HTTP connections that were in use, one after the other."""

    def __init__(self, part_bytes: int) -> None:
        self.ages_s: list[float] = []  # of those that something ended
        self.passed = 0
        self._part_bytes = part_bytes

    @property
    def passed_bytes(self) -> int:
        return self.passed * self._part_bytes

    async def watch(self, report: Report, trials: Trials, ends_s: float) -> None:
        """Send a request each second until the end, always on the same connection while it lasts."""
        seconds = ends_s - now_s()
        await trials.room(1, 1)
        async with trials.prober.own_connection() as own:
            opened, since_s, trips = 1, now_s(), trials.trips
            while (left_s := ends_s - now_s()) > 0 and not trials.is_shut:
                tens = int(seconds - left_s) // 10 * 10
                report.begin(f"watching the path (--long), {tens} of {seconds:.0f} s", is_news=True)
                reply = await trials.once(functools.partial(trials.prober.exchange, self._part_bytes, own=own))
                self.passed += reply.kind == "answer"
                if trials.trips == trips and (own.opened > opened or reply.kind == "lost"):
                    self.ages_s.append(now_s() - since_s)
                if own.opened > opened or reply.kind == "lost" or trials.trips != trips:
                    # A connection that was lost is followed by a new one, which opens with the next request.
                    opened, since_s, trips = own.opened + (reply.kind == "lost"), now_s(), trials.trips
                await asyncio.sleep(min(BEAT_S, max(0.0, ends_s - now_s())))


async def _watch_link(trials: Trials, seconds: float) -> tuple[str, float]:
    """Return why a link ended before the time was over, and its age; an empty reason if it did not."""
    if not trials.has_link:
        return "", 0.0
    began_s = now_s()
    return await trials.prober.link(_LINK_S, stay_s=seconds), now_s() - began_s


def _report_lives(report: Report, trials: Trials, watched: _Watched, seconds: float) -> None:
    mib = watched.passed_bytes / (1 << 20)
    moved = f"{counted(watched.passed, 'request')} with {mib:.1f} MiB passed in {seconds:.0f} s"
    if trials.prober.is_fresh:
        report.add("lifetime", Verdict.OK, f"{moved}, each on an HTTP connection of its own", ages_s=[])
    elif not watched.ages_s:
        report.add("lifetime", Verdict.OK, f"{moved}; no HTTP connection was cut", ages_s=[])
    else:
        ages_s = sorted(watched.ages_s)
        age_s = ages_s[len(ages_s) // 2]
        often = f"{len(ages_s)} HTTP connections were cut, after about {age_s:.0f} s"
        text = often if len(ages_s) >= _OFTEN else f"an HTTP connection was cut after {age_s:.0f} s"
        advice = "the tunnel opens new ones and repeats what was lost, which costs time"
        report.add("lifetime", Verdict.NOTE, f"{text}; {moved}", advice, ages_s=[round(one, 1) for one in ages_s])


def _report_link(report: Report, ended: tuple[str, float], seconds: float) -> None:
    reason, age_s = ended
    if not reason:
        report.add("link life", Verdict.OK, f"a link stayed open for {seconds:.0f} s", age_s=None)
        return
    text = f"a link was cut after {age_s:.0f} s ({reason})"
    advice = "the tunnel opens another one at once; what was on its way is sent again"
    report.add("link life", Verdict.NOTE, text, advice, age_s=round(age_s, 1))
