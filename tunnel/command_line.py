"""What all commands of tunnel share: the log, how their help looks, and how errors reach a person."""

import argparse
import sys
from collections.abc import Callable
from typing import TextIO

from tunnel.exit_codes import INTERNAL, INTERRUPTED, USAGE

__all__ = [
    "LOG_LEVELS",
    "CommandAdder",
    "configure_log",
    "exit_code_of",
]

LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def configure_log(level: str, stream: TextIO | None = None) -> None:
    """One line for each event, on standard error unless told otherwise: JSON, unless a person looks."""
    import structlog  # here: a command that logs nothing starts sooner without it

    file = sys.stderr if stream is None else stream
    last = structlog.dev.ConsoleRenderer() if file.isatty() else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            last,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(LOG_LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file),
    )


def exit_code_of(program: str, run: Callable[[], int], usage_errors: tuple[type[Exception], ...] = ()) -> int:
    """Run a command; tell a person on standard error what went wrong, and give the exit code of the contract."""
    from tunnel.core.errors import TunnelError  # here, as above: the core comes with it

    try:
        return run()
    except usage_errors as error:
        print(f"{program}: {error}", file=sys.stderr)
        return USAGE
    except TunnelError as error:
        print(f"{program}: {error}", file=sys.stderr)
        return int(getattr(error, "exit_code", INTERNAL))
    except BrokenPipeError:
        return INTERNAL
    except KeyboardInterrupt:
        return INTERRUPTED


class CommandAdder:
    """Adds commands to a parser that all look alike: what it is, its arguments, an example."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(self, name: str, what: str, example: str) -> argparse.ArgumentParser:
        """A command with its help."""
        return self._commands.add_parser(
            name,
            help=what,
            description=what[0].upper() + what[1:] + ".",
            epilog=f"example: {example}",
            allow_abbrev=False,
        )
