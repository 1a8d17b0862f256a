"""The command `tunnel`: its arguments, its exit codes, its log."""

import argparse
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from client.commands import connect, login, logout
from client.usage import UsageError
from tunnel.shell import EXIT_CODES, LOG_LEVELS, CommandAdder, configure_log, exit_code_of

__all__ = ["main", "make_parser"]

# Each has `add(commands: CommandAdder) -> None`, which sets `run`: a function of the parsed arguments, to an exit code.
# A command that has to start at once sets `logs` to False: then it must log nothing.
COMMANDS: tuple[ModuleType, ...] = (login, logout, connect)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    arguments = make_parser().parse_args(argv)
    if getattr(arguments, "logs", True):
        configure_log(arguments.log)
    return exit_code_of("tunnel", lambda: int(arguments.run(arguments)), (UsageError,))


def make_parser() -> argparse.ArgumentParser:
    """All commands."""
    parser = argparse.ArgumentParser(
        prog="tunnel", description="TCP-like sockets over plain HTTP requests.", epilog=EXIT_CODES, allow_abbrev=False
    )
    parser.add_argument("--version", action=_Version, nargs=0, help="show the version and exit")
    parser.add_argument("--log", choices=LOG_LEVELS, default="warning", help="what to log (default: warning)")
    commands = CommandAdder(parser)
    for command in COMMANDS:
        command.add(commands)
    return parser


class _Version(argparse.Action):
    """Looks the version up only when it is asked for: that takes as long as everything else here."""

    def __call__(self, parser: argparse.ArgumentParser, *arguments: Any) -> None:
        from importlib import metadata

        print(f"{parser.prog} {metadata.version('tunnel-transport')}")
        parser.exit()
