"""The examination: the order of its steps, and the conclusion from their findings."""

import time
from dataclasses import replace

from tunnel import DeniedError, RefusedError, TunnelError
from tunnel.carriers.dialing import Dialing
from tunnel.carriers.probe import Prober
from tunnel.exit_codes import DENIED, INTEGRITY, LOST, NOT_AUTHENTICATED, OK
from tunnel_client.doctor.findings import Finding, Report, Verdict
from tunnel_client.doctor.path_steps import examine_path, examine_timeouts
from tunnel_client.doctor.relay_steps import examine_relay
from tunnel_client.doctor.surroundings import examine_proxy
from tunnel_client.errors import UsageError
from tunnel_client.places import Address
from tunnel_client.settings import CARRIERS, RelaySettings

__all__ = ["examine"]

TARGET_S = 15.0
_NOTHING = Finding("", Verdict.OK, "")
_SUMMARIES = {
    NOT_AUTHENTICATED: "the relay or a proxy does not accept our credentials: see above",
    DENIED: "the relay answers, but does not allow what was asked for",
    LOST: "the tunnel works, but the target was not reached",
    INTEGRITY: "the relay's answers are altered on the way",
}


async def examine(report: Report, settings: RelaySettings, target: Address | None, watch_seconds: float) -> None:
    """Run all steps and fill the report. Raises UsageError if the settings cannot be used."""
    try:
        dialing = Dialing(settings.url, token=settings.token, proxy=settings.proxy, ca=settings.ca)
    except ValueError as error:
        raise UsageError(str(error)) from None
    report.relay = str(dialing.base)
    examine_proxy(report, settings, str(dialing.proxy or ""))
    async with Prober(dialing) as prober:
        if await examine_relay(report, prober):
            await _examine_carriers(report, settings, prober)
            await examine_path(report, prober)
            await examine_timeouts(report, prober, watch_seconds)
            if target is not None:
                await _examine_target(report, settings, target)
    _conclude(report, settings, target)


async def _examine_carriers(report: Report, settings: RelaySettings, prober: Prober) -> None:
    reply = await prober.exchange()
    if reply.kind == "answer":
        report.add("poll", Verdict.OK, "exchanges work: the tunnel can carry everything", carrier="poll", works=True)
    reason = await prober.upgrade()
    if reason:
        text = f"connections cannot be upgraded here ({reason})"
        report.add("link", Verdict.NOTE, text, "poll is used, which is slower", carrier="link", works=False)
    else:
        report.add("link", Verdict.OK, "connections can be upgraded: the fastest carrier", carrier="link", works=True)
    others: tuple[str, ...] = CARRIERS[3:]
    for carrier in others:
        works = await _is_usable(settings, carrier)
        verdict, text = (Verdict.OK, "works") if works else (Verdict.NOTE, "does not work here")
        report.add(carrier, verdict, text, carrier=carrier, works=works)


async def _is_usable(settings: RelaySettings, carrier: str) -> bool:
    try:
        async with replace(settings, carrier=carrier).attach(attach_timeout=TARGET_S) as attachment:
            return attachment.stats().carrier.startswith(carrier)
    except TunnelError:
        return False


async def _examine_target(report: Report, settings: RelaySettings, target: Address) -> None:
    report.target = str(target)
    began = time.monotonic()
    try:
        async with settings.attach(attach_timeout=TARGET_S) as attachment:
            began = time.monotonic()
            _, writer = await attachment.open_connection(target.host, target.port, timeout=TARGET_S)
            milliseconds = round((time.monotonic() - began) * 1e3, 1)
            writer.transport.abort()
    except DeniedError as error:
        report.add("target", Verdict.PROBLEM, str(error), exit_code=DENIED, reason="denied")
    except RefusedError as error:
        report.add("target", Verdict.PROBLEM, str(error), exit_code=LOST, reason=error.reason.name.lower())
    except (TunnelError, TimeoutError) as error:
        text = str(error) or f"no answer within {TARGET_S:g} s"
        report.add("target", Verdict.PROBLEM, text, exit_code=LOST, reason="lost")
    else:
        text = f"{report.target} is allowed, and answers within {milliseconds:g} ms"
        report.add("target", Verdict.OK, text, connect_ms=milliseconds)


def _conclude(report: Report, settings: RelaySettings, target: Address | None) -> None:
    if report.exit_code != OK:
        report.summary = _SUMMARIES.get(report.exit_code, "the tunnel does not work here")
        report.next = _after_a_problem(report)
        return
    notes = sum(finding.verdict is Verdict.NOTE for finding in report.findings)
    report.summary = "the tunnel works here" + (f"; see the {notes} note(s) above" if notes else "")
    if target is None:
        report.next = "tunnel doctor HOST:PORT, to try a target"
    else:
        port = target.port if target.port is not None and target.port > 1023 else 8080
        report.next = f"tunnel forward {port}:{target}"
    if settings.source in ("--relay", "TUNNEL_RELAY") and target is None:
        report.next = f"tunnel login {report.relay} --token-file FILE, so that the other commands know the relay"


def _after_a_problem(report: Report) -> str:
    problems = {finding.step: finding for finding in report.findings if finding.verdict is Verdict.PROBLEM}
    if "proxy login" in problems:
        proxy = problems["proxy login"].data.get("proxy", "HOST:PORT")
        return f"tunnel doctor --proxy http://USER:PASSWORD@{proxy}"
    if "TLS" in problems and problems["TLS"].data["kind"] == "unknown-issuer":
        return "tunnel doctor --ca FILE"
    if report.exit_code == DENIED and report.target:
        return f"ask the relay's operator to run: tunnel-relay rule check NAME {report.target} --resolve"
    if "target" in problems:
        return f"tunnel doctor {report.target}, once the target is known to run"
    if report.exit_code == NOT_AUTHENTICATED:
        return f"tunnel login {report.relay} --token-file FILE"
    if problems.get("relay", _NOTHING).data.get("status") in (200, 403, 511):
        return f"open {report.relay} in a browser, sign in, and run this again"
    return f"tunnel doctor --relay URL (this time it was {report.relay})"
