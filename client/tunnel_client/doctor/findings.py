"""What an examination found: a list of findings, a verdict, the next command, an exit code. Values and text; no I/O."""

import enum
from collections.abc import Callable
from typing import Any

import msgspec

from tunnel.exit_codes import OK

__all__ = ["Finding", "Report", "Verdict", "render_finding", "render_summary"]

_NAME_WIDTH = 12
_VERDICT_WIDTH = 9
_LINE_WIDTH = 110


class Verdict(enum.Enum):
    """How a step ended."""

    OK = "ok"
    NOTE = "note"  # the tunnel copes, and a person may want to know
    PROBLEM = "problem"
    SKIPPED = "not tried"


class Finding(msgspec.Struct, frozen=True):
    """One step. `advice`: what to do about it. `data`: the same for programs, times in milliseconds."""

    step: str
    verdict: Verdict
    text: str
    advice: str = ""
    data: dict[str, Any] = {}


class Report(msgspec.Struct):
    """Everything. `exit_code` is of the first problem that keeps the tunnel from working."""

    relay: str
    target: str = ""
    findings: list[Finding] = []
    summary: str = ""
    next: str = ""
    exit_code: int = OK
    told: Callable[[Finding], None] | None = None

    def add(
        self, step: str, verdict: Verdict, text: str, advice: str = "", *, exit_code: int = OK, **data: Any
    ) -> None:
        """Another finding, which is told at once."""
        finding = Finding(step, verdict, text, advice, data)
        self.findings.append(finding)
        self.exit_code = self.exit_code or exit_code
        if self.told is not None:
            self.told(finding)

    def encode(self) -> bytes:
        """As JSON."""
        fields = {name: getattr(self, name) for name in self.__struct_fields__ if name != "told"}
        return msgspec.json.encode({"version": 1, **fields})


def render_finding(finding: Finding) -> str:
    """Lines for a person."""
    head = f"  {finding.verdict.value:{_VERDICT_WIDTH}}  {finding.step:{_NAME_WIDTH}}  "
    text = finding.text + (f": {finding.advice}" if finding.advice else "")
    return "\n".join(_wrapped(head, text)) + "\n"


def render_summary(report: Report) -> str:
    """The end."""
    lines = [f"verdict: {report.summary}"]
    if report.next:
        lines.append(f"next:    {report.next}")
    return "\n" + "\n".join(lines) + "\n"


def _wrapped(head: str, text: str) -> list[str]:
    lines, line = [], head
    for word in text.split():
        if len(line) + len(word) >= _LINE_WIDTH and line.strip() and line != head:
            lines.append(line.rstrip())
            line = " " * len(head)
        line += f"{word} "
    return [*lines, line.rstrip()]
