"""The clocks of the machine of a broker under test: they step, and time passes."""

from __future__ import annotations

import time

import pytest

from tunnel.system import clock

__all__ = ["sleep", "start", "step"]


def step(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Set the clock of the machine."""
    wall, wall_ns = time.time, time.time_ns
    monkeypatch.setattr(time, "time", lambda: wall() + seconds)
    monkeypatch.setattr(time, "time_ns", lambda: wall_ns() + int(seconds * 1e9))


def sleep(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let time pass, which every clock sees."""
    step(monkeypatch, seconds)
    passed_s = clock.passed_s
    monkeypatch.setattr(clock, "passed_s", lambda: passed_s() + seconds)


def start(monkeypatch: pytest.MonkeyPatch, seconds: float) -> None:
    """Let the process start with a clock that is wrong by this."""
    step(monkeypatch, seconds)
    monkeypatch.setattr(clock, "_STARTED_S", clock._STARTED_S + seconds)
