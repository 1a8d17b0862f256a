"""For a command that runs as on a fast machine, and for its children, all clocks and waits are slow alike."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.quickly import build, environment, main

pytestmark = pytest.mark.real("gcc")

FACTOR = 5
SPAN_S = 0.1
UPTIME_S = 0.02  # /proc/uptime counts hundredths of a second

# It prints how long a wait took at least and at most, and how long by each of three clocks; then the age of a new file.
PROGRAM = f"""
import asyncio, os, select, signal, subprocess, sys, tempfile, threading, time, uvloop

def true_s():
    return float(open("/proc/uptime").read().split()[0])

def alarm():
    signal.signal(signal.SIGALRM, lambda *_: None)
    signal.setitimer(signal.ITIMER_REAL, {SPAN_S})
    signal.pause()

ways = {{
    "sleep": lambda: time.sleep({SPAN_S}),
    "lock": lambda: threading.Event().wait({SPAN_S}),
    "select": lambda: select.select([], [], [], {SPAN_S}),
    "poll": lambda: select.poll().poll({SPAN_S} * 1000),
    "epoll": lambda: select.epoll().poll({SPAN_S}),
    "asyncio": lambda: asyncio.run(asyncio.sleep({SPAN_S})),
    "uvloop": lambda: uvloop.run(asyncio.sleep({SPAN_S})),
    "alarm": alarm,
    "child": lambda: subprocess.run([sys.executable, "-c", "import time; time.sleep({SPAN_S})"], env={{}}),
}}
clocks = [time.monotonic, time.time, lambda: time.clock_gettime(time.CLOCK_BOOTTIME)]
outer_s = true_s()
begun = [clock() for clock in clocks]
inner_s = true_s()
ways[sys.argv[1]]()
inner_s = true_s() - inner_s
gone = [clock() - begun_s for clock, begun_s in zip(clocks, begun)]
print(inner_s, true_s() - outer_s, *gone)
with tempfile.NamedTemporaryFile() as file:
    print(time.time() - os.stat(file.name).st_mtime, time.time() - begun[1])
"""


@pytest.fixture(scope="module")
def library() -> Iterator[Path]:
    with TemporaryDirectory() as folder:
        yield build(Path(folder))


@pytest.mark.parametrize("way", ["sleep", "lock", "select", "poll", "epoll", "asyncio", "uvloop", "alarm", "child"])
def test_clocks_are_slow_and_waits_are_as_slow(library: Path, way: str) -> None:
    said = subprocess.run(
        [sys.executable, "-c", PROGRAM, way], env=environment(library, FACTOR), capture_output=True, text=True
    )
    assert said.stderr == ""
    first, second = said.stdout.splitlines()
    inner_s, outer_s, *gone = map(float, first.split())
    assert inner_s >= SPAN_S * FACTOR - UPTIME_S
    assert all(inner_s - UPTIME_S <= each_s * FACTOR <= outer_s + UPTIME_S for each_s in gone)
    age_s, since_s = map(float, second.split())
    assert -0.01 <= age_s < since_s  # the kernel takes the times of files from a coarse clock


def test_the_exit_code_is_that_of_the_command() -> None:
    assert main(3, [sys.executable, "-c", "raise SystemExit(7)"]) == 7
