"""The command `tunnel`: its arguments, its exit codes, its log."""

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence

from tunnel import __version__
from tunnel.command_line import LOG_LEVELS, CommandAdder, configure_log, exit_code_of
from tunnel.exit_codes import EXIT_CODES
from tunnel_client.errors import UsageError

__all__ = ["COMMANDS", "main", "make_parser"]

# Modules of tunnel_client.cli.commands. Each has `add(commands: CommandAdder) -> None`, which sets `run`: a function
# of the parsed arguments, to an exit code; and, if it serves until told to stop, `serves`: then its log begins with
# "info" where no person looks. A command that has to start at once sets `logs` to False: then it must log nothing.
COMMANDS = ("login", "logout", "forward", "expose", "proxy", "connect", "run", "status", "doctor")


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = make_parser(_named(given)).parse_args(given)
    if getattr(arguments, "logs", True):
        is_logged = getattr(arguments, "serves", False) and not sys.stderr.isatty()
        configure_log(arguments.log or ("info" if is_logged else "warning"))
    return exit_code_of("tunnel", lambda: int(arguments.run(arguments)), (UsageError,))


def make_parser(names: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """All commands, or those named."""
    parser = argparse.ArgumentParser(
        prog="tunnel", description="TCP-like sockets over plain HTTP requests.", epilog=EXIT_CODES, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--log", choices=LOG_LEVELS, help="what to log (default: warning; info where a log is kept)")
    commands = CommandAdder(parser)
    for name in names:
        importlib.import_module(f"tunnel_client.cli.commands.{name}").add(commands)
    return parser


def _named(argv: Sequence[str]) -> Sequence[str]:
    """The command that is called, where that is plain; else all. A command that is not called is not imported: that
    would take longer than `tunnel connect` takes for the rest."""
    rest = argv[2:] if argv[:1] == ["--log"] else argv
    return rest[:1] if rest and rest[0] in COMMANDS else COMMANDS
