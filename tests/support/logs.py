"""The log within its limits, for tests that count lines."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from structlog.testing import capture_logs

from tunnel.logs.setup import Limiting
from tunnel_servlet.access.sources import source_of

__all__ = ["limited_logs"]


@contextmanager
def limited_logs() -> Iterator[list[Any]]:
    """Collect the lines that pass the limits as the relay sets them, and those about suppressed lines."""
    about_limits: list[Any] = []
    limiting = Limiting(
        lambda suppressed: about_limits.append({"event": "suppressed", **suppressed._asdict()}), source_of
    )
    with capture_logs(processors=[limiting]) as logs:
        yield logs
        logs += about_limits
