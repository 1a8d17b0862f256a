"""The command `tunnel`: its arguments, its exit codes, its log."""

import argparse
from collections.abc import Sequence
from importlib import metadata
from types import ModuleType

from client.commands import run
from client.options import UsageError
from tunnel.shell import EXIT_CODES, LOG_LEVELS, CommandAdder, configure_log, exit_code_of

__all__ = ["main", "make_parser"]

# Each has `add(commands: CommandAdder) -> None`, which sets `run`: a function of the parsed arguments, to an exit code.
COMMANDS: tuple[ModuleType, ...] = (run,)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    arguments = make_parser().parse_args(argv)
    configure_log(arguments.log)
    return exit_code_of("tunnel", lambda: int(arguments.run(arguments)), (UsageError,))


def make_parser() -> argparse.ArgumentParser:
    """All commands."""
    parser = argparse.ArgumentParser(
        prog="tunnel", description="TCP-like sockets over plain HTTP requests.", epilog=EXIT_CODES, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {metadata.version('tunnel-transport')}")
    parser.add_argument("--log", choices=LOG_LEVELS, default="warning", help="what to log (default: warning)")
    commands = CommandAdder(parser)
    for command in COMMANDS:
        command.add(commands)
    return parser
