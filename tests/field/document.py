"""Writes docs/PATHS.md from the results."""

import datetime
import textwrap
from collections.abc import Sequence

from loadtests.harness.tree import ROOT
from tests.field.machine import program_versions
from tests.field.results import Result
from tests.field.rows import ROWS, SCRIPTED
from tests.field.table import render_markdown

__all__ = ["FILE", "render_document", "write_document"]

_COLUMNS = 100
FILE = ROOT / "docs" / "PATHS.md"
_HEAD = """\
# Paths

This document shows how the tunnel works through intermediaries (proxies, gateways and firewalls),
for people who want to know how it will work through theirs. Most lines are of real programs; the
last {scripts} intermediaries are scripts that behave as their names say. `make test-field` measures all of
them and writes this table (`--write`); the configuration of each intermediary is in
`tests/field/config`.

Each line shows one intermediary with one carrier, `auto` or `poll`. Where the path allows it,
`auto` uses an upgraded connection (`link`), or else a WebSocket (`websocket`), or else requests
with streamed answers (`stream`); it needs no more than `poll`, which uses separate requests with
complete answers. Relay, exit, client (`tunnel forward`), target and intermediary are processes on
one machine.

| column | meaning |
|---|---|
| asked, in use | the carrier that was asked for, and the one that the client used |
| MB/s | the rate of 32 MiB in one direction (8 where that takes minutes); `no`: not complete in 90 s, or altered |
| of bare | the same rates as shares of those of a bare TCP forwarder, measured a few minutes before or after |
| echo p50 | the median of up to 100 echoes of 64 bytes |
| after idling | the time of the first echo on a connection that was idle for 70 s |
| kill of the relay | the longest silence of a stream when the relay is killed with SIGKILL and started again |
| doctor | the exit code of `tunnel doctor`, and the steps that report a note or a problem |
| outcome | *whole*: every part of the line succeeded; *known*: a known fault; *FAILED*: another fault |
| | *refused*: no tunnel can work there, and the client says so and ends |
"""
_LOAD = """\
The load average is that before the run. Where it is not near 0, other programs shared the
processors; then compare the shares, not the rates."""


def render_document(results: Sequence[Result], machine: str, date: datetime.date, versions: str) -> str:
    """The whole document."""
    measured = f"Measured on {date.isoformat()}: {machine}."
    names = {result.row for result in results}
    missing = "; ".join(row.title for row in ROWS if row.name not in names)
    absent = textwrap.fill(f"Not measured in this run: {missing}.", _COLUMNS) + "\n\n" if missing else ""
    programs = textwrap.fill(f"Programs: {versions}.", _COLUMNS)
    head = _HEAD.format(scripts=len(SCRIPTED))
    return f"{head}\n{measured}\n{_LOAD}\n\n{programs}\n\n{absent}{render_markdown(results)}\n"


def write_document(results: Sequence[Result], machine: str, date: datetime.date) -> None:
    """Write docs/PATHS.md."""
    names = {result.row for result in results}
    found = program_versions(row for row in ROWS if row.name in names)
    versions = ", ".join(f"{program} {version}" for program, version in found.items())
    FILE.write_text(render_document(results, machine, date, versions))
