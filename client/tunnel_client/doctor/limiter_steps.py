"""What the doctor says about a limiter: a hop, or the relay, that refuses requests because of their number."""

from tunnel.ground.printable import counted
from tunnel_client.doctor.answers import described
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.trials import NOTHING_PASSES, Limiter, Trials

__all__ = ["examine_limiter", "examine_shut"]

_LONG_S = 2.5
_MUCH_BYTES = 100 << 10
_MORE = "ask its operator for a higher rate; a link, if connections can be upgraded, needs one request only"


def examine_limiter(report: Report, trials: Trials) -> bool:
    """Report the limiter, if one was found and did let requests pass again. Return whether it is reported."""
    found = trials.limiter
    if found is None or trials.is_shut:
        return False
    what = _described(found)
    count = _counted(found)
    if found.lasted_s > _LONG_S:
        text = f"a limiter refused everything for {found.lasted_s:.0f} s after {count} ({what})"
    else:
        text = f"a hop limits the rate: after {count}, others got {what}"
    text += f"; one every {trials.pause_s:g} s passes, and the doctor asks no faster from here on"
    report.add(
        "rate limit",
        Verdict.NOTE,
        text,
        _MORE,
        status=found.reply.status,
        requests=found.requests,
        moved_bytes=found.moved_bytes,
        lasted_s=round(found.lasted_s, 1),
        requests_per_s=round(1 / trials.pause_s, 2),
    )
    return True


def examine_shut(report: Report, trials: Trials) -> None:
    """Report a limiter that did not let anything pass again."""
    found = trials.limiter
    assert found is not None
    waited = f", for {found.lasted_s:.0f} s so far" if found.lasted_s > _LONG_S else ""
    what = "a limiter refuses every request" if trials.prober.attached is None else NOTHING_PASSES
    text = f"{what}{waited}: {_described(found)}, after {_counted(found)}"
    advice = (
        "a hop may have banned this address, or the relay may have stopped: run this again in some minutes, and ask "
        "the network's operator if this line stays"
    )
    lasted_s = round(found.lasted_s, 1)
    report.add("rate limit", Verdict.PROBLEM, text, advice, status=found.reply.status, lasted_s=lasted_s)


def _counted(found: Limiter) -> str:
    moved = f" with {found.moved_bytes / (1 << 20):.1f} MiB" if found.moved_bytes >= _MUCH_BYTES else ""
    return f"{counted(found.requests, 'request')}{moved} in {found.within_s:.0f} s"


def _described(found: Limiter) -> str:
    asks = f", which asks to wait {found.reply.wait_ms / 1e3:.0f} s" if found.reply.wait_ms else ""
    return f"{described(found.reply)}{asks}"
