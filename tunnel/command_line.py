"""The parts that all commands of tunnel share: the log, the layout of help texts, error messages and exit codes."""

import argparse
import os
import sys
import traceback
from collections.abc import Callable
from typing import TextIO

from tunnel.exit_codes import INTERNAL, INTERRUPTED, USAGE

__all__ = [
    "LOG_LEVELS",
    "CommandAdder",
    "allows_insecure_http",
    "configure_log",
    "exit_code_of",
]

_QUOTE_LETTERS = 300  # of an unexpected error, which may quote a page
LOG_LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


def allows_insecure_http(option: bool) -> bool:
    """Whether the option --insecure-http or the variable TUNNEL_INSECURE_HTTP allows to send a token unencrypted."""
    return option or os.environ.get("TUNNEL_INSECURE_HTTP", "") == "1"


def configure_log(level: str, stream: TextIO | None = None) -> None:
    """Write one log line for each event to `stream`, by default standard error: JSON, unless it is a terminal."""
    import structlog  # here: commands that log nothing start sooner without it

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


def exit_code_of(
    program: str,
    run: Callable[[], int],
    usage_errors: tuple[type[Exception], ...] = (),
    *,
    has_details: bool = False,
) -> int:
    """Run a command and return its exit code; print an error as one line on standard error.

    An error that no code expected is a defect, or a fault of this machine. Its traceback is printed only if
    `has_details` is set, that is, under `--log debug`.
    """
    from tunnel.core.errors import TunnelError  # here for the same reason: it imports the core

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
    except Exception as error:
        if has_details:
            traceback.print_exc()
        return _unexpected(program, error)


def _unexpected(program: str, error: Exception) -> int:
    first = next((line for line in str(error).splitlines() if line.strip()), "")
    cause = f"{type(error).__name__}: {first[:_QUOTE_LETTERS]}".rstrip(": ")
    if isinstance(error, OSError) and error.filename is not None:
        print(
            f"{program}: {error.filename} cannot be used: {error.strerror}: check the path and its permissions",
            file=sys.stderr,
        )
        return USAGE
    advice = "run the command again with --log debug before its name, and report the output as a defect"
    print(f"{program}: internal error: {cause}: {advice}", file=sys.stderr)
    return INTERNAL


class CommandAdder:
    """Adds commands to a parser, each with help in the same layout: what it does, its arguments, an example."""

    def __init__(self, parser: argparse.ArgumentParser) -> None:
        self._commands = parser.add_subparsers(required=True, metavar="COMMAND")

    def add(self, name: str, what: str, example: str) -> argparse.ArgumentParser:
        """Add the command `name` and return its parser. `what`: its description, in lower case without a full stop."""
        return self._commands.add_parser(
            name,
            help=what,
            description=what[0].upper() + what[1:] + ".",
            epilog=f"example: {example}",
            allow_abbrev=False,
        )
