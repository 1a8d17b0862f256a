"""The steps that find out whether a relay answers and accepts this user, and what else answers in its place."""

import asyncio
import functools
import time
from email.utils import parsedate_to_datetime
from typing import Any

from tunnel.carriers.dialing.failures import TLS_CUT, Failure
from tunnel.carriers.dialing.redirects import is_to_https
from tunnel.carriers.probes.probe import TEXT_TYPES, ProbeError, Prober, Reply
from tunnel.ground.exit_codes import DENIED, INTEGRITY, NOT_AUTHENTICATED, UNREACHABLE
from tunnel_client.doctor.answers import NO_CACHE, advice_for, described, is_altered, is_from_limiter
from tunnel_client.doctor.certificate_steps import examine_certificate
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.hop_steps import examine_hops, recognise
from tunnel_client.doctor.limiter_steps import examine_limiter, examine_shut
from tunnel_client.doctor.products import is_relay_itself
from tunnel_client.doctor.trials import ANSWER_S, TRIES, WAIT_S, Trials

__all__ = ["examine_relay"]

# If the clocks differ by more than this, certificates may count as invalid. So may tokens that a gateway in front of
# the relay asks for, if they carry a time; the relay's own tokens carry none.
SKEW_S = 60.0
_BUSY = 503
_FORWARD_PROXIES = ("Squid", "mitmproxy", "Privoxy", "tinyproxy", "Blue Coat", "Zscaler", "Netskope", "McAfee", "Cisco")
_OCTETS = "application/octet-stream"
_OTHER_TYPES = ("multipart/form-data", "application/json", "text/plain", "application/x-www-form-urlencoded")

_ALLOW_POST = "ask the operator of that hop to allow POST requests to the relay, or use an https:// URL"
_PROXY_ANSWERS = "the proxy answers "
_PROXY_CANNOT = "it cannot reach the relay: check host and port of the URL, and ask whether the relay runs"
_PROXY_REFUSES = (
    "its rules forbid it: ask its operator to allow CONNECT to this host and port; many proxies allow port 443 alone, "
    "so a relay on that port may work"
)

_ASK = "ask the operator"

_FAILURES = {
    "name": "check the host in the URL, or name your proxy with --proxy: in many networks only the proxy knows names",
    "refused": "check host and port of the URL, and ask the relay's operator whether the relay runs",
    "timeout": "a firewall may drop the packets: name your proxy with --proxy, or ask the network's operator for one",
    "proxy": "check --proxy, or the variable that names the proxy",
    "cut": "a hop ends the connection: name your proxy with --proxy, or try https:// instead of http://",
    "tls": "check whether the URL must begin with https:// or http://",
    "tls-cut": TLS_CUT,
    "no-http": "check whether the URL must begin with https:// or http://",
    "other": "check the URL and the network",
}
_NOTHING_THERE = ("name", "refused", "timeout", "proxy", "other")  # after all others, something has answered


async def examine_relay(report: Report, trials: Trials, ca: str | None = None, proxy: str | None = None) -> bool:
    """Find out whether a relay answers and accepts this user. Return whether exchanges are possible.

    `ca` and `proxy` are as in the settings.
    """
    prober = trials.prober
    attaching = _Attaching(trials)
    await attaching.attach()
    failures, reply = attaching.failures, attaching.reply
    if reply is not None and prober.attached is not None:
        trials.worst_s = reply.seconds
    replies = [] if trials.is_shut else await recognise(trials, reply, proxy)  # each request may renew a ban
    if prober.dialing.tls is not None:
        devices = [name for name in trials.writers if name.startswith(_FORWARD_PROXIES)]
        await examine_certificate(report, prober, failures, devices if prober.dialing.proxy else [], ca)
    if reply is not None and prober.attached is not None:
        _found(report, reply, failures, attaching.strangers)
        examine_limiter(report, trials)
    elif trials.is_shut:
        examine_shut(report, trials)
    elif reply is not None and reply.kind == "foreign":
        await _foreign(report, trials, reply)
    elif reply is not None and not (is_altered(reply) and await _passes_as_text(report, trials, reply)):
        _refused(report, prober, reply)
    elif reply is not None:
        examine_limiter(report, trials)
    else:
        await _no_answer(report, trials, failures[-1])
    examine_hops(report, trials, replies)
    if reply is not None:
        _examine_clock(report, reply)
    return prober.attached is not None


class _Attaching:
    """Tries to attach. `failures` has the attempts without an answer, `strangers` the answers that were neither a
    success nor a final refusal, and `reply` is the last answer."""

    def __init__(self, trials: Trials) -> None:
        self.failures: list[Failure] = []
        self.strangers: list[Reply] = []
        self.reply: Reply | None = None
        self._trials = trials

    async def attach(self) -> None:
        """Try up to three times, and for longer if a limiter refuses."""
        for number in range(1, TRIES + 1):
            last = await self._once()
            if _is_limited(last):
                last = await self._trials.wait_out(last, self._once, self._is_answered)
            if self._is_final(last) or self._trials.is_shut:
                return
            if last.status == _BUSY and number < TRIES:
                await asyncio.sleep(WAIT_S)

    async def _once(self) -> Reply:
        await self._trials.room(0, 1)
        last = await self._trials.ask(self._asked, ANSWER_S)
        if last.kind != "lost":
            self.reply = last
            if not self._is_final(last):
                self.strangers.append(last)
        elif last.text.startswith("no answer within"):
            self.failures.append(Failure("timeout", last.text))
        return last

    async def _asked(self) -> Reply:
        try:
            return await self._trials.prober.attach()
        except ProbeError as error:
            self.failures.append(error.failure)
            raise

    def _is_answered(self, last: Reply) -> bool:
        return self._is_final(last) or not (last.kind == "lost" or _is_limited(last))

    def _is_final(self, last: Reply) -> bool:
        if last.kind == "lost":
            failure = self.failures[-1]
            return failure.kind == "proxy-password" or failure.is_about_certificate
        return self._trials.prober.attached is not None or (last.kind == "status" and last.status in (401, 403))


def _is_limited(reply: Reply) -> bool:
    """Return whether a limiter gave this reply. A relay that is shutting down also asks to wait."""
    return is_from_limiter(reply) and not (reply.kind == "status" and reply.status == _BUSY)


def _found(report: Report, reply: Reply, failures: list[Failure], strangers: list[Reply]) -> None:
    milliseconds = round(reply.seconds * 1e3, 1)
    text = f"a tunnel relay answers and accepts this user ({milliseconds:g} ms)"
    report.add("relay", Verdict.OK, text, ms=milliseconds)
    if reply.coding:
        text = f"a hop compresses answers ({reply.coding}), although they say no-transform"
        advice = "the tunnel undoes that, but has no streamed answers there"
        report.add("compression", Verdict.NOTE, text, advice, coding=reply.coding)
    failed = len(failures) + len(strangers)
    if failed:
        cause = described(strangers[-1]) if strangers else failures[-1].text
        text = f"{failed} of {failed + 1} attempts failed first ({cause})"
        report.add("first answer", Verdict.NOTE, text, "lost exchanges are repeated, which costs time", failed=failed)


async def _foreign(report: Report, trials: Trials, reply: Reply) -> None:
    """Report an answer that is not a relay's. If a relay answers another type of request body, say so."""
    data: dict[str, Any] = {"status": reply.status, "answer": reply.text, "products": trials.products}
    if reply.status in (301, 302, 303, 307, 308):
        dialing, location = trials.prober.dialing, reply.headers.get("location", "elsewhere")
        text = f"something other than a relay answers and redirects to {location.partition('?')[0]}"
        advice = "sign in there with a browser, or correct the URL"
        if is_to_https(dialing.url("exchange"), location):
            advice = "write https:// in place of http:// in the relay's URL"
        report.add("relay", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, **data)
        return
    passing = await _passing_type(trials) if reply.status in (400, 403, 406, 415, 500, 501) else ""
    if not passing and await _get_passes(trials):
        text = f"a relay is there, and a hop lets GET requests pass, but no POST ({described(reply)})"
        report.add("relay", Verdict.PROBLEM, text, _ALLOW_POST, exit_code=UNREACHABLE, method="GET", **data)
        return
    if not passing:
        text = f"something other than a relay answers ({described(reply)})"
        report.add("relay", Verdict.PROBLEM, text, advice_for(reply), exit_code=UNREACHABLE, **data)
        return
    text = f"a relay is there, but a hop refuses bodies of the type {_OCTETS} ({described(reply)})"
    text += f"; {passing} passes"
    if trials.prober.attached is not None:
        report.add("relay", Verdict.NOTE, f"{text}, and the tunnel uses it", body_type=passing, **data)
        return
    advice = (
        "a web application firewall does that, such as ModSecurity with its core rule set (rule 920420): ask its "
        f"operator to allow {_OCTETS} for POST requests to the relay, or use an https:// URL if the firewall stands in "
        "your network"
    )
    report.add("relay", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, body_type=passing, **data)


async def _passing_type(trials: Trials) -> str:
    """Return the first other type of body that reaches a relay, or an empty string."""
    for body_type in _OTHER_TYPES:
        reply = await trials.ask(functools.partial(trials.prober.attach_as, body_type))
        if reply.kind in ("status", "attached"):
            return body_type
    return ""


async def _passes_as_text(report: Report, trials: Trials, reply: Reply) -> bool:
    """Find out whether text arrives unaltered where binary bodies do not, and report it if so: the tunnel uses it."""
    for kind in TEXT_TYPES:
        if (await trials.ask(functools.partial(trials.prober.attach_as, kind))).kind == "attached":
            text = f"a relay is there, but a hop alters binary bodies ({described(reply)}); {kind} passes"
            report.add("relay", Verdict.NOTE, f"{text}, and the tunnel uses it", body_type=kind, answer=reply.text)
            return True
    return False


async def _get_passes(trials: Trials) -> bool:
    """Return whether a relay answers a GET: as all resources that take POST alone, it does so with status 405."""
    reply = await trials.ask(trials.prober.page)
    return reply.status == 405 and reply.headers.get("allow", "").upper() == "POST"


def _refused(report: Report, prober: Prober, reply: Reply) -> None:
    """Report a relay that refuses this user, or whose requests or answers arrive damaged."""
    data = {"status": reply.status, "answer": reply.text}
    what = f"HTTP {reply.status}" + (f", {reply.text}" if reply.text else "")
    if reply.kind == "stale":
        text = f"a hop answers from its cache in place of a relay: {what}"
        report.add("relay", Verdict.PROBLEM, text, NO_CACHE, exit_code=UNREACHABLE, **data)
        return
    if reply.kind == "damaged":
        text = f"a relay answers, but its answers arrive damaged: {what}"
        advice = "a hop changes them: use an https:// URL, which prevents that"
        report.add("relay", Verdict.PROBLEM, text, advice, exit_code=INTEGRITY, **data)
        return
    if reply.status == 400:
        text, advice = f"a relay answers, but requests reach it damaged: {what}", "use an https:// URL"
        report.add("relay", Verdict.PROBLEM, text, advice, exit_code=INTEGRITY, **data)
        return
    if reply.status == 401:
        text, advice = _about_token(reply, has_token="Authorization" in prober.dialing.headers)
        report.add("relay", Verdict.PROBLEM, text, advice, exit_code=NOT_AUTHENTICATED, **data)
        return
    code, advice = UNREACHABLE, "try again" + (f", in {reply.wait_ms / 1e3:.0f} s" if reply.wait_ms else "")
    if reply.status == 403:
        code, advice = DENIED, "do as it says, or ask the relay's operator"
    report.add("relay", Verdict.PROBLEM, f"a tunnel relay refuses this user: {what}", advice, exit_code=code, **data)


def _about_token(reply: Reply, *, has_token: bool) -> tuple[str, str]:
    what, separator, advice = reply.text.rpartition(f"; {_ASK}")
    if separator:  # the relay knows the token or the certificate, and says what is wrong with it
        return f"a tunnel relay refuses this user: {what}", f"{_ASK}{advice}"
    if not has_token:
        return "a tunnel relay answers and asks for a token, but none is set", "name its file with --token-file FILE"
    if reply.text.startswith("no token came"):
        text = "a tunnel relay answers, but the token does not reach it: a hop removes the header "
        advice = "ask its operator to pass the header on (Squid as an accelerator: login=PASS at cache_peer), or use "
        return f"{text}Authorization", f"{advice}an https:// URL if it stands in your network"
    return (
        "a tunnel relay answers, but does not know the token",
        "check it, or ask the relay's operator for a new one (`tunnel-relay user rotate NAME`)",
    )


async def _no_answer(report: Report, trials: Trials, failure: Failure) -> None:
    prober = trials.prober
    proxy = prober.dialing.proxy
    if failure.kind == "proxy-password":
        text, _, advice = f"the proxy {failure.text.removeprefix('the proxy ')}".partition(": ")
        where = proxy.authority if proxy else "HOST:PORT"
        report.add("proxy login", Verdict.PROBLEM, text, advice, exit_code=NOT_AUTHENTICATED, proxy=where)
    elif failure.kind == "proxy" and failure.text.startswith(_PROXY_ANSWERS):
        answer = failure.text.removeprefix(_PROXY_ANSWERS)
        text = f"the proxy {proxy} does not connect us to {prober.dialing.base.authority} ({answer})"
        can_not_reach = answer.startswith(("HTTP 500", "HTTP 502", "HTTP 503", "HTTP 504"))
        advice = _PROXY_CANNOT if can_not_reach else _PROXY_REFUSES
        report.add("relay", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, kind=failure.kind)
    elif failure.kind in ("cut", "timeout") and await _get_passes(trials):
        text = f"a relay is there, and a hop lets GET requests pass, but no POST ({failure.text})"
        report.add("relay", Verdict.PROBLEM, text, _ALLOW_POST, exit_code=UNREACHABLE, method="GET")
    elif not failure.is_about_certificate:
        where = f"the proxy {proxy}" if failure.kind == "proxy" else str(prober.dialing.base)
        what = "nothing" if failure.kind in _NOTHING_THERE else "no relay"
        text = f"{what} answers at {where} ({failure.text})"
        advice = failure.advice or _FAILURES.get(failure.kind, _FAILURES["other"])
        report.add("relay", Verdict.PROBLEM, text, advice, exit_code=UNREACHABLE, kind=failure.kind)


def _examine_clock(report: Report, reply: Reply) -> None:
    if reply.kind == "foreign":
        report.add("clock", Verdict.SKIPPED, "the relay has not answered, and the clocks of hops do not matter")
        return
    # A reverse proxy puts its own name and date into the relay's answer, or neither.
    other = "the relay" if is_relay_itself(reply.headers) else "the hop that answers for the relay"
    try:
        skew_s = parsedate_to_datetime(reply.headers.get("date", "")).timestamp() - time.time()
    except (ValueError, OverflowError):
        report.add("clock", Verdict.SKIPPED, "the answer has no date")
        return
    if abs(skew_s) < SKEW_S:
        report.add("clock", Verdict.OK, f"this machine and {other} agree on the time", skew_s=round(skew_s))
    else:
        direction = "ahead of" if skew_s < 0 else "behind"
        text = f"this machine is {abs(skew_s):.0f} s {direction} {other}"
        report.add("clock", Verdict.NOTE, text, "set the clock: certificates depend on it", skew_s=round(skew_s))
