"""The examination: the order of its steps, and the conclusion from their findings."""

import asyncio
from collections.abc import Awaitable, Callable

from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.probes.probe import ProbeError, Prober
from tunnel.ground.exit_codes import OK
from tunnel_client.doctor.carrier_steps import examine_link, examine_others, examine_poll
from tunnel_client.doctor.connection_steps import examine_at_once, examine_reuse, examine_timeouts
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.hop_steps import examine_relays
from tunnel_client.doctor.limiter_steps import examine_limiter, examine_shut
from tunnel_client.doctor.long_steps import examine_long
from tunnel_client.doctor.next_step import conclude, problems_of
from tunnel_client.doctor.path_steps import examine_path, examine_reliability, examine_throughput
from tunnel_client.doctor.relay_steps import examine_relay
from tunnel_client.doctor.road_steps import examine_roads
from tunnel_client.doctor.size_steps import examine_sizes, report_vanishing
from tunnel_client.doctor.surroundings import examine_proxy
from tunnel_client.doctor.target_step import TARGET_CONNECTIONS, TARGET_REQUESTS, examine_target
from tunnel_client.doctor.trials import EXAMINING, Trials
from tunnel_client.errors import UsageError
from tunnel_client.places import Address
from tunnel_client.proposals import Given
from tunnel_client.settings import RelaySettings

__all__ = ["examine"]

_HTTPS_S = 5.0
_HURT = frozenset({"rate limit", "body limit", "answer limit", "altering", "caching"})


async def examine(
    report: Report,
    settings: RelaySettings,
    target: Address | None,
    watch_seconds: float,
    given: Given,
    long_seconds: float = 0.0,
    together: Given | None = None,
) -> None:
    """Run all steps and fill the report. Raises UsageError if the settings cannot be used.

    The path is watched for `long_seconds`, unless that is 0. `given`: the options of the command line, which the next
    command keeps; `together`, if there are several relays, those for all of them.
    """
    try:
        dialing = Dialing(settings.url, settings)
    except ValueError as error:
        raise UsageError(str(error)) from None
    report.relay = str(dialing.base)
    report.begin(f"asking {dialing.description}")
    examine_proxy(report, settings, str(dialing.proxy or ""))
    async with Prober(dialing) as prober:
        trials = Trials(prober, report)
        if await examine_relay(report, trials, settings.ca, settings.proxy):
            await _examine_all(report, settings, trials, watch_seconds, long_seconds)
            if target is not None and report.exit_code == OK:
                await trials.spend(TARGET_REQUESTS, TARGET_CONNECTIONS)
                report.begin(f"asking for {target}")
                await prober.reconnect()  # its connections may be all that the path carries at once
                await examine_target(report, settings, target)
            elif target is not None:
                report.target = str(target)
                report.add("target", Verdict.SKIPPED, "the problem above comes first")
        await trials.leave()
    await _examine_https(report, settings, dialing)
    await trials.rest()
    conclude(report, settings, target, given, together)


async def _examine_all(
    report: Report, settings: RelaySettings, trials: Trials, watch_seconds: float, long_seconds: float
) -> None:
    """Run the steps after the attach. If several relays answer by turns, or no exchange works, leave out the rest."""
    report.begin(EXAMINING)
    is_told = trials.limiter is not None  # at the attach
    is_one = await examine_relays(report, trials)
    if is_one:
        await examine_reuse(report, trials)
    works = is_one and await examine_poll(report, trials)
    is_told = is_told or examine_limiter(report, trials)
    if works and trials.is_shut:
        examine_shut(report, trials)
    if not works or trials.is_shut:
        report.add("other steps", Verdict.SKIPPED, "they need exchanges that work")
        return
    if trials.vanishing:
        await _examine_roads(report, trials, settings)
        report_vanishing(report, trials, trials.vanishing)
        report.add("other steps", Verdict.SKIPPED, f"they need larger {trials.vanishing}")
        return
    size = 0

    async def find_sizes() -> None:
        nonlocal size
        size = await examine_sizes(report, trials)

    steps: list[Callable[[], Awaitable[object]]] = [
        lambda: examine_at_once(report, trials),
        lambda: examine_timeouts(report, trials, watch_seconds),  # here: the budget refills during the wait
        lambda: _examine_roads(report, trials, settings),
        find_sizes,
        lambda: examine_path(report, trials, size),
        lambda: examine_throughput(report, trials, size),
        lambda: examine_long(report, trials, size, long_seconds),
    ]
    for step in steps:
        report.begin(EXAMINING)
        await step()
        is_told = is_told or examine_limiter(report, trials)
        if trials.is_shut:
            examine_shut(report, trials)
            report.add("other steps", Verdict.SKIPPED, "they need exchanges that work")
            return
    examine_reliability(report, trials)


async def _examine_roads(report: Report, trials: Trials, settings: RelaySettings) -> None:
    """Try all roads; large exchanges are needed only if none is better."""
    await examine_link(report, trials)
    await examine_others(report, trials, settings)
    trials.has_link = examine_roads(report, settings, trials.prober.dialing, trials.vanishing)


async def _examine_https(report: Report, settings: RelaySettings, dialing: Dialing) -> None:
    """Find out whether the relay also answers at https://, where only a hop that decrypts TLS can read or alter data.

    The token is not sent: that address may belong to another server.
    """
    if dialing.base.scheme != "http" or not dialing.base.host or "proxy login" in problems_of(report):
        return
    if dialing.proxy is None and not _is_hurt(report):
        return
    report.begin("asking whether a relay answers at https://, too")
    better = str(dialing.base.with_scheme("https").with_port(None)).rstrip("/")
    where = f"{better} through the same proxy" if dialing.proxy is not None else better
    try:
        async with asyncio.timeout(_HTTPS_S):
            async with Prober(Dialing(better, proxy=settings.proxy, ca=settings.ca, cert=settings.cert)) as prober:
                reply = await prober.attach()
    except (ProbeError, TimeoutError, ValueError) as error:
        text = f"no relay answers at {where} ({str(error) or f'no answer within {_HTTPS_S:g} s'})"
        advice = "if the relay offers TLS elsewhere, use that URL: hops then pass everything on unread"
        report.add("https", Verdict.SKIPPED, text, advice, url=better, works=False)
        return
    if reply.kind in ("status", "attached"):
        text = f"a relay also answers at {where}"
        advice = "use that URL: hops then pass everything on unread, and a link can work"
        report.add("https", Verdict.OK, text, advice, url=better, works=True)
    else:
        text = f"something other than a relay answers at {where} (HTTP {reply.status})"
        report.add("https", Verdict.SKIPPED, text, url=better, works=False)


def _is_hurt(report: Report) -> bool:
    """Return whether a hop limits, alters or refuses our plain HTTP, which it could not do with TLS."""
    for finding in report.findings:
        if finding.step == "relay" and finding.verdict is Verdict.PROBLEM:
            return "status" in finding.data  # something answers there
        if finding.step in _HURT and finding.verdict in (Verdict.NOTE, Verdict.PROBLEM):
            return True
    return False
