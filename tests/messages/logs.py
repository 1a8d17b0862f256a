"""What the tests of logs share: a configuration that flushes only on demand, and the payloads of a log."""

from typing import Any

from tunnel.messages.kept.log import Log, LogConfig

__all__ = ["NEVER_S", "config", "payloads"]

NEVER_S = 3600.0


def config(**changes: Any) -> LogConfig:
    return LogConfig(**{"flush_messages": 1_000_000, "flush_s": NEVER_S, **changes})


def payloads(log: Log, offset: int = 0) -> list[bytes]:
    found: list[bytes] = []
    while offset + len(found) < log.end_offset:
        found += log.read(offset + len(found), 1000).payloads()
    return found
