"""For tests of several relays: how soon the next relay is asked."""

from __future__ import annotations

import pytest

from tunnel import several_relays


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a slow machine be no reason to ask the next relay; `hurry` undoes this."""
    monkeypatch.setattr(several_relays, "_NEXT_S", 60.0)


@pytest.fixture
def hurry(monkeypatch: pytest.MonkeyPatch, patient: None) -> None:
    """Ask the next relay almost at once."""
    monkeypatch.setattr(several_relays, "_NEXT_S", 0.05)
