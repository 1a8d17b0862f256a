"""The examination: the order of its steps, and the conclusion from their findings."""

import asyncio

from tunnel.carriers.dialing import Dialing
from tunnel.carriers.probe import ProbeError, Prober
from tunnel.exit_codes import DENIED, INTEGRITY, LOST, NOT_AUTHENTICATED, OK
from tunnel_client.doctor.carrier_steps import examine_link, examine_others, examine_poll
from tunnel_client.doctor.connection_steps import examine_at_once, examine_reuse, examine_timeouts
from tunnel_client.doctor.findings import Finding, Report, Verdict, counted
from tunnel_client.doctor.hop_steps import examine_relays
from tunnel_client.doctor.path_steps import examine_path, examine_reliability, examine_throughput
from tunnel_client.doctor.relay_steps import examine_relay
from tunnel_client.doctor.road_steps import examine_roads
from tunnel_client.doctor.size_steps import examine_sizes
from tunnel_client.doctor.surroundings import examine_proxy
from tunnel_client.doctor.target_step import examine_target
from tunnel_client.doctor.trials import Trials
from tunnel_client.errors import UsageError
from tunnel_client.places import Address
from tunnel_client.settings import RelaySettings

__all__ = ["examine"]

_HTTPS_S = 5.0
_HURT = frozenset({"rate limit", "body limit", "answer limit", "altering", "caching"})
_NOTHING = Finding("", Verdict.OK, "")
_SUMMARIES = {
    NOT_AUTHENTICATED: "the relay or a proxy does not accept our credentials: see above",
    DENIED: "the relay answers, but does not allow this request",
    LOST: "the tunnel works, but the target was not reached",
    INTEGRITY: "requests or answers are altered on the path",
}


async def examine(report: Report, settings: RelaySettings, target: Address | None, watch_seconds: float) -> None:
    """Run all steps and fill the report. Raises UsageError if the settings cannot be used."""
    try:
        dialing = Dialing(
            settings.url,
            token=settings.token,
            proxy=settings.proxy,
            ca=settings.ca,
            cert=settings.cert,
            insecure_http=settings.insecure_http,
            headers=settings.headers,
            hostname=settings.hostname,
            sni=settings.sni,
        )
    except ValueError as error:
        raise UsageError(str(error)) from None
    report.relay = str(dialing.base)
    examine_proxy(report, settings, str(dialing.proxy or ""))
    async with Prober(dialing) as prober:
        trials = Trials(prober)
        if await examine_relay(report, trials, settings.ca, settings.proxy):
            await _examine_all(report, settings, trials, watch_seconds)
            if target is not None and report.exit_code == OK:
                await examine_target(report, settings, target)
            elif target is not None:
                report.target = str(target)
                report.add("target", Verdict.SKIPPED, "the problem above comes first")
    await _examine_https(report, settings, dialing)
    _conclude(report, settings, target)


async def _examine_all(report: Report, settings: RelaySettings, trials: Trials, watch_seconds: float) -> None:
    """Run the steps after the attach. If several relays answer by turns, or no exchange works, leave out the rest."""
    is_one = await examine_relays(report, trials)
    if is_one:
        await examine_reuse(report, trials)
    if not is_one or not await examine_poll(report, trials):
        report.add("other steps", Verdict.SKIPPED, "they need exchanges that work")
        return
    await examine_at_once(report, trials)
    await examine_link(report, trials)
    await examine_others(report, settings)
    examine_roads(report, settings, trials.prober.dialing)
    size = await examine_sizes(report, trials)
    await examine_path(report, trials, size)
    await examine_throughput(report, trials, size)
    await examine_timeouts(report, trials, watch_seconds)
    examine_reliability(report, trials)


async def _examine_https(report: Report, settings: RelaySettings, dialing: Dialing) -> None:
    """Find out whether the relay also answers at https://, where only a hop that decrypts TLS can read or alter data.

    The token is not sent: that address may belong to another server.
    """
    if dialing.base.scheme != "http" or not dialing.base.host or "proxy login" in _problems(report):
        return
    if dialing.proxy is None and not _is_hurt(report):
        return
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


def _problems(report: Report) -> dict[str, Finding]:
    return {finding.step: finding for finding in report.findings if finding.verdict is Verdict.PROBLEM}


def _conclude(report: Report, settings: RelaySettings, target: Address | None) -> None:
    if "encryption" in _problems(report):
        report.summary = "the tunnel works, but the target is not encrypted with a key that is known: see above"
        report.next = f"tunnel doctor {target}, once its operator has confirmed which key it has"
        return
    if report.exit_code != OK:
        report.summary = _SUMMARIES.get(report.exit_code, "the tunnel does not work here: see the problem above")
        report.next = _after_a_problem(report)
        return
    notes = sum(finding.verdict is Verdict.NOTE for finding in report.findings)
    report.summary = "the tunnel works here" + (f"; see the {counted(notes, 'note')} above" if notes else "")
    if target is None:
        report.next = "tunnel doctor HOST:PORT, to try a target"
    else:
        port = target.port if target.port is not None and target.port > 1023 else 8080
        report.next = f"tunnel forward {port}:{target}"
    if settings.source in ("--relay", "TUNNEL_RELAY") and target is None:
        report.next = f"tunnel login {report.relay} --token-file FILE, so that the other commands know the relay"


def _after_a_problem(report: Report) -> str:
    problems = _problems(report)
    better = next((finding for finding in report.findings if finding.step == "https"), _NOTHING)
    again = f"tunnel doctor --relay {report.relay}"
    if "proxy login" in problems:
        proxy = problems["proxy login"].data.get("proxy", "HOST:PORT")
        return f"tunnel doctor --proxy http://USER:PASSWORD@{proxy}"
    if "TLS" in problems and problems["TLS"].data["kind"] == "unknown-issuer":
        return "tunnel doctor --ca FILE"
    if report.exit_code == DENIED and report.target:
        return f"ask the relay's operator to run: tunnel-relay rule check NAME {report.target} --resolve"
    if problems.keys() == {"target"}:
        return f"tunnel doctor {report.target}, once the target is known to run"
    if better.data.get("works"):
        return f"tunnel doctor --relay {better.data['url']}"
    relay = problems.get("relay", _NOTHING)
    if report.exit_code == NOT_AUTHENTICATED and "no token came" not in str(relay.data.get("answer", "")):
        return f"tunnel login {report.relay} --token-file FILE"
    if (
        report.exit_code != INTEGRITY
        and relay.data.get("status") in (200, 403, 511)
        and "body_type" not in relay.data
        and not relay.data.get("products")
    ):
        return f"open {report.relay} in a browser, sign in, and run this again"
    if "kind" in relay.data or relay.data.get("status") == 404:
        return f"{again}, with the right URL, once the relay runs"
    return f"{again}, once the problem above is repaired"
