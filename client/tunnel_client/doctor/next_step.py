"""The conclusion of an examination: its summary, and the command to run next."""

import re
import shlex

from tunnel.ground.exit_codes import DENIED, INTEGRITY, LOST, NOT_AUTHENTICATED, OK
from tunnel.ground.printable import counted
from tunnel_client.doctor.findings import Finding, Report, Verdict
from tunnel_client.places import Address
from tunnel_client.proposals import LOGIN_OPTIONS, Given, line
from tunnel_client.settings import RelaySettings

__all__ = ["conclude", "problems_of", "rule_check"]

_EXIT_DENIES = "in the configuration of the exit"  # in the texts of exits; see `Dialer`
_TABLE = re.compile(r'\[users\.(?:([A-Za-z0-9_-]+)|"([^"]+)")\]')
_NOTHING = Finding("", Verdict.OK, "")
_SUMMARIES = {
    NOT_AUTHENTICATED: "the relay or a proxy does not accept our credentials: see above",
    DENIED: "the relay answers, but does not allow this request",
    LOST: "the tunnel works, but the target was not reached: see above",
    INTEGRITY: "requests or answers are altered on the path",
}


def problems_of(report: Report) -> dict[str, Finding]:
    """Return the problems, by step."""
    return {finding.step: finding for finding in report.findings if finding.verdict is Verdict.PROBLEM}


def conclude(
    report: Report, settings: RelaySettings, target: Address | None, given: Given, together: Given | None = None
) -> None:
    """Set the summary and the next command, which keeps the options that were given, and is nothing but a command.

    `given` has those for this relay alone. `together`, if this is one of several relays, has those for all: what works
    is used with all of them.
    """
    all_given = given if together is None else together
    if "encryption" in problems_of(report):
        report.summary = "the tunnel works, but the target is not encrypted with a key that is known: see above"
        report.next = line(_doctor(target), all_given)
        return
    if report.exit_code != OK:
        report.summary = _SUMMARIES.get(report.exit_code, "the tunnel does not work here: see the problem above")
        if any(_EXIT_DENIES in found.text for found in problems_of(report).values()):
            report.summary = "the tunnel works, but the rules of the exit do not allow this target"
            report.summary += ": its operator adds the line above"
        elif report.exit_code == DENIED and report.target:
            why = rule_check(problems_of(report).get("target", _NOTHING).text, report.target)
            report.summary += f"; its operator finds out why with: {why}"
        report.next = _after_a_problem(report, _doctor(target), given)
        return
    notes = sum(finding.verdict is Verdict.NOTE for finding in report.findings)
    report.summary = "the tunnel works here" + (f"; see the {counted(notes, 'note')} above" if notes else "")
    if target is not None:
        # A relay on this machine has port 8080.
        port = target.port if target.port is not None and target.port > 1023 else 8081
        if target.is_loopback and port == target.port:
            port = (port + 10_000 - 1024) % 64_512 + 1024  # the target itself may be on this machine, at its own port
        report.next = line(f"tunnel forward {shlex.quote(f'{port}:{target}')}", all_given)
    elif settings.source in ("--relay", "TUNNEL_RELAY"):
        report.next = _login(report, given, is_added=together is not None)
    else:
        report.next = line("tunnel doctor HOST:PORT", all_given)


def rule_check(text: str, target: str) -> str:
    """Return the command with which the relay's operator finds out why the target is denied; empty if the rules of an
    exit deny it, which the relay does not know. `text` is the refusal, which mostly names the user's table of rules."""
    if _EXIT_DENIES in text:
        return ""
    found = _TABLE.search(text)
    user = "NAME" if found is None else found.group(1) or found.group(2)
    return f"tunnel-relay rule check {shlex.quote(user)} {shlex.quote(target)} --resolve"


def _after_a_problem(report: Report, doctor: str, given: Given) -> str:
    problems = problems_of(report)
    better = next((finding for finding in report.findings if finding.step == "https"), _NOTHING)
    if "proxy login" in problems:
        return line(doctor, {**given, "--proxy": ["@FILE"]})
    if "TLS" in problems and problems["TLS"].data["kind"] == "unknown-issuer":
        return line(doctor, {**given, "--ca": ["FILE"]})
    if problems.keys() == {"target"}:
        return line(doctor, given)
    if better.data.get("works"):
        return line(doctor, {**given, "--relay": [better.data["url"]]}, without=("--insecure-http",))
    relay = problems.get("relay", _NOTHING)
    if report.exit_code == NOT_AUTHENTICATED and "no token came" not in str(relay.data.get("answer", "")):
        return _login(report, given)
    return line(doctor, {**given, "--relay": [report.relay]})


def _doctor(target: Address | None) -> str:
    return "tunnel doctor" if target is None else f"tunnel doctor {shlex.quote(str(target))}"


def _login(report: Report, given: Given, *, is_added: bool = False) -> str:
    """Return the command that stores the relay; with `is_added`, beside others.

    It has no option for a certificate of the user, so where the relay asks for one, it cannot try the token. A token
    that the relay does not know is not proposed again.
    """
    given_file = "FILE" if report.exit_code else next(iter(given.get("--token-file", ())), "FILE")
    token_file = shlex.quote(given_file)
    more = " --no-check" * ("--cert" in given) + " --add" * is_added
    return line(f"tunnel login {report.relay} --token-file {token_file}{more}", given, only=LOGIN_OPTIONS)
