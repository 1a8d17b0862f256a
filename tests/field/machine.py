"""The machine and the programs of a measurement: processors, their load, versions."""

import os
import re
import subprocess
import sys
from collections.abc import Iterable

from tests.field.hops.squid import BUMPING
from tests.field.rows import Row
from tests.support.programs import find_program

__all__ = ["load_line", "missing_programs", "program_versions"]

_ASK = {
    "nginx": "-v",
    "haproxy": "-v",
    "squid": "-v",
    "apache2": "-v",
    "varnishd": "-V",
    "tinyproxy": "-v",
    "privoxy": "--version",
    "mitmdump": "--version",
    "lighttpd": "-v",
    "caddy": "version",
    "envoy": "--version",
    "h2o": "--version",
    "nghttpx": "--version",
    "traffic_server": "--version",
    "ffproxy": "-v",
    "e2guardian": "-v",
    "node": "--version",
}
_VERSION = re.compile(r"\d+\.\d+(?:\.\d+)?")
_BUMPING = "squid-openssl"


def _find(program: str) -> str | None:
    if program == _BUMPING:
        path = BUMPING / "usr" / "sbin" / "squid"
        return str(path) if path.exists() else None
    return find_program(program)


def _programs(rows: Iterable[Row]) -> list[str]:
    return sorted({hop.program for row in rows for hop in row.hops if hop.program})


def missing_programs(rows: Iterable[Row]) -> list[str]:
    """The programs of these rows that this machine does not have."""
    return [program for program in _programs(rows) if _find(program) is None]


def program_versions(rows: Iterable[Row]) -> dict[str, str]:
    """The version of each program of these rows, as the program states it; or "missing" or "unknown"."""
    return {program: _ask(program) for program in _programs(rows)}


def _ask(program: str) -> str:
    path = _find(program)
    if path is None:
        return "missing"
    option = _ASK.get(program, "-v")
    done = subprocess.run([path, option], capture_output=True, text=True, errors="replace", timeout=30, check=False)
    found = _VERSION.search((done.stdout + done.stderr).replace(path, ""))
    return found.group() if found else "unknown"


def load_line() -> str:
    """The processors, Python, and how busy the machine is."""
    python = ".".join(map(str, sys.version_info[:3]))
    return f"{os.cpu_count()} processors, load average {os.getloadavg()[0]:.1f}, Python {python}"
