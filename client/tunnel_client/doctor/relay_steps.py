"""The steps that find out whether a relay answers, who issued its certificate, and what else answers in its place."""

import asyncio
import time
from email.utils import parsedate_to_datetime

from tunnel.carriers.failures import Failure
from tunnel.carriers.probe import ProbeError, Prober, Reply, issuer_of
from tunnel.exit_codes import DENIED, INTEGRITY, NOT_AUTHENTICATED, UNREACHABLE
from tunnel_client.doctor.findings import Report, Verdict

__all__ = ["INTERCEPTORS", "examine_relay"]

ANSWER_S = 10.0
ATTEMPTS = 3
SKEW_S = 60.0  # a larger difference may make certificates, and tokens of other systems, invalid
# Names in the certificates that TLS-inspecting products issue.
INTERCEPTORS = (
    "avast, barracuda, bitdefender, blue coat, bluecoat, burp, charles proxy, check point, cisco umbrella, eset, "
    "fiddler, forcepoint, fortigate, fortinet, kaspersky, mcafee, mitmproxy, netskope, palo alto, portswigger, "
    "skyhigh, sophos, squid, symantec web, trend micro, untangle, watchguard, websense, zscaler"
).split(", ")

_FAILURES = {
    "name": "check the host in the URL, or name your proxy with --proxy: in many networks only the proxy knows names",
    "refused": "check host and port of the URL, and that the relay runs (its operator: `tunnel-relay check`)",
    "timeout": "a firewall may drop the packets: name your proxy with --proxy, or ask the network's operator for one",
    "proxy": "check --proxy, or the variable that names the proxy",
    "cut": "something on the way ends the connection: name your proxy with --proxy, or try https:// instead of http://",
    "tls": "check whether the URL must begin with https:// or http://",
    "no-http": "check whether the URL must begin with https:// or http://",
    "other": "check the URL and the network",
}
_SIGN_IN = (
    "it may be a login or block page: open the relay's URL in a browser, sign in, and try again; if the page stays, "
    "ask the network's operator to allow the relay"
)
_BEHIND = "a proxy cannot reach the relay: check host and port of the URL, and that the relay runs"
_FOREIGN = {200: _SIGN_IN, 403: _SIGN_IN, 511: _SIGN_IN, 502: _BEHIND, 503: _BEHIND, 504: _BEHIND}


async def examine_relay(report: Report, prober: Prober) -> bool:
    """Find out whether a relay answers and accepts us. Return whether exchanges are possible."""
    failures: list[Failure] = []
    reply: Reply | None = None
    for _ in range(ATTEMPTS):
        try:
            async with asyncio.timeout(ANSWER_S):
                reply = await prober.attach()
        except TimeoutError:
            failures.append(Failure("timeout", f"no answer within {ANSWER_S:.0f} s"))
        except ProbeError as error:
            failures.append(error.failure)
        if prober.attached is not None:
            break
        if failures and (failures[-1].kind == "proxy-password" or failures[-1].is_about_certificate):
            break
    if prober.dialing.tls is not None:
        await _examine_certificate(report, prober, failures)
    if reply is not None and prober.attached is not None:
        _found(report, reply, failures)
    elif reply is not None:
        _not_a_relay(report, reply)
    else:
        _no_answer(report, prober, failures[-1])
    if reply is not None:
        _examine_clock(report, reply)
    return prober.attached is not None


def _found(report: Report, reply: Reply, failures: list[Failure]) -> None:
    milliseconds = round(reply.seconds * 1e3, 1)
    report.add("relay", Verdict.OK, f"a tunnel relay answers and accepts us ({milliseconds:g} ms)", ms=milliseconds)
    if failures:
        text = f"{len(failures)} of {len(failures) + 1} attempts failed first ({failures[-1].text})"
        report.add(
            "reliability", Verdict.NOTE, text, "lost exchanges are repeated, which costs time", failed=len(failures)
        )
    hops = [value for name, value in reply.headers.items() if name.lower() in ("via", "x-cache")]
    if hops:
        report.add("hops", Verdict.NOTE, f"proxies on the path name themselves: {', '.join(hops)}", hops=hops)


def _not_a_relay(report: Report, reply: Reply) -> None:
    what = f"HTTP {reply.status}" + (f", {reply.text}" if reply.text else "")
    data = {"status": reply.status, "answer": reply.text}
    if reply.kind == "status" and reply.status == 401:
        report.add(
            "relay",
            Verdict.PROBLEM,
            "a tunnel relay answers, but does not know the token",
            "check it, or ask the relay's operator for a new one (`tunnel-relay user rotate NAME`)",
            exit_code=NOT_AUTHENTICATED,
            **data,
        )
    elif reply.kind == "status":
        code, advice = UNREACHABLE, "try again" + (f", in {reply.wait_ms / 1e3:.0f} s" if reply.wait_ms else "")
        if reply.status == 403:
            code, advice = DENIED, "do as it says, or ask the relay's operator"
        report.add("relay", Verdict.PROBLEM, f"a tunnel relay refuses us: {what}", advice, exit_code=code)
    elif reply.kind == "damaged":
        text = f"a relay answers, but its answers arrive damaged: {what}"
        report.add("relay", Verdict.PROBLEM, text, "use https://, which prevents that", exit_code=INTEGRITY, **data)
    elif reply.status in (301, 302, 303, 307, 308):
        where = next((value for name, value in reply.headers.items() if name.lower() == "location"), "elsewhere")
        text = f"something other than a relay answers and sends us to {where.partition('?')[0]}"
        report.add(
            "relay", Verdict.PROBLEM, text, "sign in there with a browser, or correct the URL", exit_code=UNREACHABLE
        )
    else:
        advice = _FOREIGN.get(reply.status, "check the URL, including its path")
        text = f"something other than a relay answers ({what})"
        report.add("relay", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, **data)


def _no_answer(report: Report, prober: Prober, failure: Failure) -> None:
    proxy = prober.dialing.proxy
    if failure.kind == "proxy-password":
        text, _, advice = f"the proxy {failure.text.removeprefix('the proxy ')}".partition(": ")
        where = proxy.authority if proxy else "HOST:PORT"
        report.add("proxy login", Verdict.PROBLEM, text, advice, exit_code=NOT_AUTHENTICATED, proxy=where)
    elif not failure.is_about_certificate:
        where = f"the proxy {proxy}" if failure.kind == "proxy" else str(prober.dialing.base)
        text = f"nothing answers at {where} ({failure.text})"
        advice = failure.advice or _FAILURES.get(failure.kind, _FAILURES["other"])
        report.add("relay", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, kind=failure.kind)


async def _examine_certificate(report: Report, prober: Prober, failures: list[Failure]) -> None:
    refused = next((failure for failure in failures if failure.is_about_certificate), None)
    if refused is None and prober.attached is None:
        return
    try:
        async with asyncio.timeout(ANSWER_S):
            issuer = await issuer_of(prober.dialing)
    except (ProbeError, TimeoutError):
        issuer = "an unknown issuer"
    is_known = any(name in issuer.lower() for name in INTERCEPTORS)
    if refused is not None:
        text = f"{refused.text}; {issuer} issued it"
        data = {"issuer": issuer, "trusted": False, "kind": refused.kind}
        report.add("TLS", Verdict.PROBLEM, text, refused.advice, exit_code=UNREACHABLE, **data)
    elif is_known:
        text = f"TLS is opened on the way by {issuer}, which this machine trusts"
        report.add("TLS", Verdict.NOTE, text, "it can read the token and the traffic", issuer=issuer, trusted=True)
    else:
        report.add("TLS", Verdict.OK, f"the certificate comes from {issuer}", issuer=issuer, trusted=True)


def _examine_clock(report: Report, reply: Reply) -> None:
    date = next((value for name, value in reply.headers.items() if name.lower() == "date"), "")
    try:
        skew_s = parsedate_to_datetime(date).timestamp() - time.time()
    except ValueError:
        report.add("clock", Verdict.SKIPPED, "the answer has no date")
        return
    if abs(skew_s) < SKEW_S:
        report.add("clock", Verdict.OK, "this machine and the other side agree on the time", skew_s=round(skew_s))
    else:
        direction = "ahead of" if skew_s < 0 else "behind"
        text = f"this machine is {abs(skew_s):.0f} s {direction} the other side"
        report.add("clock", Verdict.NOTE, text, "set the clock: certificates depend on it", skew_s=round(skew_s))
