"""A processor whose time a test decides."""

from __future__ import annotations

from tunnel.turns.meter import ProcessorMeter

__all__ = ["FakeMeter"]


class FakeMeter(ProcessorMeter):
    """Measures only what the test adds to `seconds`."""

    def __init__(self) -> None:
        self.seconds = 0.0
        super().__init__(lambda: self.seconds, lambda: self.seconds)
