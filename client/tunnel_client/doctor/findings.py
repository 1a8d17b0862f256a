"""The report of an examination: its findings, a summary, the next command and an exit code. No I/O."""

import enum
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from tunnel.ground.exit_codes import OK, UNREACHABLE
from tunnel.ground.printable import printable

__all__ = ["Finding", "Report", "Verdict", "render_choice", "render_finding", "render_summary"]

_NAME_WIDTH = 12
_VERDICT_WIDTH = 9
_LINE_WIDTH = 110
_NOT_SHOWN = ("told", "begun", "doing", "takes_s")


class Verdict(enum.Enum):
    """How a step ended."""

    OK = "ok"
    NOTE = "note"  # the tunnel copes with it, but the user may want to know
    PROBLEM = "problem"  # the tunnel or the target cannot be used until it is repaired
    SKIPPED = "not tried"


class Finding(msgspec.Struct, frozen=True):
    """The result of one step.

    `text` says what was found, and `data` holds the same facts for programs; the end of a key names its unit
    (`hold_s`). `advice` says what to do about it.
    """

    step: str
    verdict: Verdict
    text: str
    advice: str = ""
    data: dict[str, Any] = {}


class Report(msgspec.Struct):
    """All findings and the conclusion. `exit_code` is that of the first problem, or OK if there is no problem. `used`:
    new connections would use this relay, of all that were examined.

    `told`, if set, is called with each finding when it is added. `doing` says in words what is being tried at present,
    and `takes_s` how long it takes on any path; `begun`, if set, is called when that changes, with True if people want
    to know it at once.
    """

    relay: str
    target: str = ""
    findings: list[Finding] = []
    summary: str = ""
    next: str = ""
    exit_code: int = OK
    used: bool = False
    told: Callable[[Finding], None] | None = None
    begun: Callable[[bool], None] | None = None
    doing: str = ""
    takes_s: float = 0.0

    def begin(self, doing: str, takes_s: float = 0.0, *, is_news: bool = False) -> None:
        """Note what is tried from now on. `is_news`: people want to know it at once."""
        is_other = doing != self.doing
        self.doing, self.takes_s = doing, takes_s
        if is_other and self.begun is not None:
            self.begun(is_news)

    def add(
        self, step: str, verdict: Verdict, text: str, advice: str = "", *, exit_code: int = OK, **data: Any
    ) -> None:
        """Add a finding, and pass it to `told` at once. The first exit code other than OK is kept.

        A problem always has such an exit code: UNREACHABLE if `exit_code` does not say more.
        """
        finding = Finding(step, verdict, text, advice, data)
        if verdict is Verdict.PROBLEM:
            exit_code = exit_code or UNREACHABLE
        self.findings.append(finding)
        self.exit_code = self.exit_code or exit_code
        if self.told is not None:
            self.told(finding)

    def encode(self) -> bytes:
        """Return the report as JSON."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name not in _NOT_SHOWN}
        return msgspec.json.encode({"version": 1, **fields})


def render_finding(finding: Finding) -> str:
    """Return the lines that show a finding to the user."""
    head = f"  {finding.verdict.value:{_VERDICT_WIDTH}}  {finding.step:{_NAME_WIDTH}}  "
    text = finding.text + (f": {finding.advice}" if finding.advice else "")
    return "\n".join(_wrapped(head, text)) + "\n"


def render_summary(report: Report) -> str:
    """Return the last lines of the output: the summary and the next command."""
    lines = [f"verdict: {printable(report.summary)}"]
    if report.next:
        lines.append(f"next:    {printable(report.next)}")
    return "\n" + "\n".join(lines) + "\n"


def render_choice(reports: Sequence[Report]) -> str:
    """Say which of several relays new connections would use, and why not the others."""
    lines = [f"{one.relay} cannot be used: {_problem(one)}" for one in reports if one.exit_code != OK]
    works = [one.relay for one in reports if one.exit_code == OK]
    if not works:
        return "\n".join(["", *lines, "none of these relays can be used", ""])
    lines += [f"{url} would be used when those before it cannot be" for url in works[1:]]
    return "\n".join(["", *lines, f"new connections would use {works[0]}", ""])


def _problem(report: Report) -> str:
    found = (one.text for one in report.findings if one.verdict is Verdict.PROBLEM)
    return printable(next(found, report.summary))


def _wrapped(head: str, text: str) -> list[str]:
    lines, line = [], head
    for word in text.split():
        if len(line) + len(word) >= _LINE_WIDTH and line.strip() and line != head:
            lines.append(line.rstrip())
            line = " " * len(head)
        line += f"{word} "
    return [*lines, line.rstrip()]
