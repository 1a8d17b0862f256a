"""The limit of descriptors, in processes of their own, since it holds for the whole process; and the limits that are
tried where the system refuses large ones."""

import resource
import subprocess
import sys

import pytest

from tests.support.loops import DEADLINE_S
from tunnel.process.descriptors import allowed_connections, raise_descriptor_limit

SHOW = """
import resource, sys
from tunnel.process.event_loops import new_event_loop
_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (int(sys.argv[1]), min(hard, 4000)))
new_event_loop().close()
print(resource.getrlimit(resource.RLIMIT_NOFILE))
"""


@pytest.mark.parametrize("soft", [256, 1024, 4000])
def test_commands_may_open_as_many_descriptors_as_the_system_allows(soft: int) -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW, str(soft)], capture_output=True, text=True, timeout=DEADLINE_S, check=True
    )
    assert done.stdout == "(4000, 4000)\n"


class Limits:
    """A system that refuses limits above `most`."""

    def __init__(self, soft: int, hard: int, most: int) -> None:
        self.now = (soft, hard)
        self.most = most

    def set(self, _: int, wanted: tuple[int, int]) -> None:
        if wanted[0] > self.most:
            raise ValueError("current limit exceeds maximum limit")
        self.now = wanted


INFINITE = resource.RLIM_INFINITY


@pytest.mark.parametrize(
    ("soft", "hard", "most", "expected"),
    [
        (256, INFINITE, 10_240, 10_240),
        (1024, INFINITE, 1 << 20, 1 << 20),
        (1024, 1 << 30, 1 << 17, 1 << 16),
        (1024, 1024, 1 << 20, 1024),
        (20_000, INFINITE, 10_240, 20_000),
        (INFINITE, INFINITE, 1 << 20, INFINITE),
        (256, INFINITE, 256, 256),
    ],
)
def test_where_the_system_refuses_large_limits_smaller_ones_are_tried(
    monkeypatch: pytest.MonkeyPatch, soft: int, hard: int, most: int, expected: int
) -> None:
    limits = Limits(soft, hard, most)
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits.now)
    monkeypatch.setattr(resource, "setrlimit", limits.set)
    raise_descriptor_limit()
    assert limits.now == (expected, hard)


@pytest.mark.parametrize(
    ("files", "wanted", "beside", "expected"),
    [(1000, 8192, 0, 750), (1000, 8192, 600, 300), (1000, 200, 600, 200), (INFINITE, 8192, 0, 8192), (2, 9, 5, 1)],
)
def test_two_users_connections_are_no_more_than_descriptors_allow(
    monkeypatch: pytest.MonkeyPatch, files: int, wanted: int, beside: int, expected: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (files, INFINITE))
    assert allowed_connections(wanted, beside=beside) == expected
