"""The command `tunnel`: its arguments, exit codes and log."""

import argparse
import contextlib
import importlib
import sys
from collections.abc import Iterable, Sequence
from functools import partial

from tunnel import __version__
from tunnel.ground.exit_codes import EXIT_CODES
from tunnel.process.command_line import LOG_LEVELS, CommandAdder, CommandParser, exit_code_of, queued_log
from tunnel_client.errors import UsageError

__all__ = ["COMMANDS", "main", "make_parser"]

# Modules of tunnel_client.cli.commands, with _ for -. Each has `add(commands: CommandAdder) -> None`, which sets the
# default `run`: a function from the parsed arguments to an exit code. A command that serves until it is stopped also
# sets `serves`: its log then starts at the level "info" if standard error is not a terminal, and its option --json
# turns the log into events on standard output. A command that must start fast sets `logs` to False and must not log.
COMMANDS = (
    "login",
    "logout",
    "forward",
    "expose",
    "proxy",
    "connect",
    "run",
    "up",
    "install-unit",
    "status",
    "peers",
    "doctor",
)
_DESCRIPTION = (
    "Open TCP and UDP connections through firewalls and proxies that let only HTTP requests out. The connections go "
    "through a relay, which is a web service outside the firewall, to a target. A target is a HOST:PORT, which the "
    "relay or an exit connects to (an exit is a process that connects to targets for the relay), or a service, which "
    "is a name that a user publishes with `tunnel expose`."
)

_OR_WAIT = ", or give --wait SECONDS to try for longer"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    given = sys.argv[1:] if argv is None else list(argv)
    arguments = make_parser(_named(given)).parse_args(given)
    is_events = getattr(arguments, "events", False)
    is_logged = is_events or (getattr(arguments, "serves", False) and not sys.stderr.isatty())
    level = arguments.log or ("info" if is_logged else "warning")
    with queued_log(level, is_events=is_events) if getattr(arguments, "logs", True) else contextlib.nullcontext():
        return exit_code_of(
            "tunnel",
            lambda: int(arguments.run(arguments)),
            (UsageError,),
            has_details=arguments.log == "debug",
            reword=partial(_reworded, arguments, _OR_WAIT if hasattr(arguments, "wait") else ""),
        )


def make_parser(names: Iterable[str] = COMMANDS) -> CommandParser:
    """Build the parser with the named commands, by default all."""
    parser = CommandParser(prog="tunnel", description=_DESCRIPTION, epilog=EXIT_CODES)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--log",
        choices=LOG_LEVELS,
        help="log events of this level and above (default: warning; but info for the commands forward, "
        "expose, proxy and up, if standard error is not a terminal or --json is given)",
    )
    commands = CommandAdder(parser)
    for name in names:
        importlib.import_module(f"tunnel_client.cli.commands.{name.replace('-', '_')}").add(commands)
    return parser


def _reworded(arguments: argparse.Namespace, wait: str, text: str) -> str:
    """Return an error in which the commands that it proposes have the options of this one; `wait` is its own option."""
    from tunnel.refusals import OR_WAIT  # here: few commands end with an error
    from tunnel_client.proposals import given_options, with_options

    return with_options(text.replace(OR_WAIT, wait), given_options(arguments))


def _named(argv: Sequence[str]) -> Sequence[str]:
    """Return the name of the command that is called, or all names if that is not evident.

    Only the command that is called is imported: importing all would take longer than the rest of `tunnel connect`.
    """
    if list(argv) == ["--version"]:
        return ()
    rest = argv[2:] if argv[:1] == ["--log"] else argv
    return rest[:1] if rest and rest[0] in COMMANDS else COMMANDS
