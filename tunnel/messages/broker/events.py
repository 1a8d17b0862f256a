"""Events of everyday life in a broker or a listener, for the log of a command."""

import structlog

__all__ = ["note"]

_logger = structlog.get_logger("tunnel.broker")


def note(event: str, **details: object) -> None:
    """Log an event, if this process has configured its log: without that, structlog prints to standard output."""
    if structlog.is_configured():
        _logger.info(event, **details)
