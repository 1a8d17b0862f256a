"""The allocator keeps freed memory for the next use."""

import subprocess
import sys

import pytest

from tunnel.process.malloc import give_back_freed_memory, keep_freed_memory

PROGRAM = """
import resource
from tunnel.process.malloc import keep_freed_memory
{prepare}
for _ in range(3):
    bytearray(8 << 20)  # the allocator adapts its thresholds to the first large blocks
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    block = b"x" * (8 << 20)
    other = b"y" * (8 << 20)
    del block, other
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def faults(prepare: str) -> int:
    """Return the page faults of a new process that uses large blocks, one after the other."""
    command = [sys.executable, "-c", PROGRAM.format(prepare=prepare)]
    return int(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is configured")
def test_freed_memory_is_used_again() -> None:
    assert faults("keep_freed_memory()") < faults("") / 2


HOLDER = """
import os
from tunnel.process.malloc import give_back_freed_memory, keep_freed_memory
def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
keep_freed_memory()
blocks = [bytes(1000) for _ in range(50_000)]
last = bytes(1000)  # the end of the heap stays in use
del blocks
before = resident()
give_back_freed_memory()
print(before - resident())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc is configured")
def test_unused_memory_can_be_given_back() -> None:
    command = [sys.executable, "-c", HOLDER]
    given_back = int(subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout)
    assert given_back > 20 << 20


def test_a_second_call_of_either_function_is_no_error() -> None:
    for _ in range(2):
        keep_freed_memory()
        give_back_freed_memory()
