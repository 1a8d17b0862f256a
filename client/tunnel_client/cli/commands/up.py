"""`tunnel up`: serve the forwards, services and proxies of one file, and follow its changes."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
from pathlib import Path

import structlog

from tunnel.ground.exit_codes import OK, USAGE
from tunnel.process.command_line import CommandAdder, add_events_option, show, show_json, shows_people, tell
from tunnel.process.service_manager import say_ready, say_status
from tunnel.process.stopping import until_stopped
from tunnel.system.private_files import make_private_directory, write_new
from tunnel_client.cli.lookups import client_loop
from tunnel_client.cli.options import add_relay_options, trace_of
from tunnel_client.cli.serving import add_rate_option
from tunnel_client.cli.up.declaration import json_schema
from tunnel_client.cli.up.display import can_draw, drawn
from tunnel_client.cli.up.example import EXAMPLE
from tunnel_client.cli.up.file import BrokenFileError, ReadFile, default_path, option_of, read_up_file
from tunnel_client.cli.up.kinds import KINDS
from tunnel_client.cli.up.relay_choice import chosen_settings
from tunnel_client.cli.up.supervisor import Load, Supervisor
from tunnel_client.errors import UsageError
from tunnel_client.settings import RelaySettings
from tunnel_client.status import serve_reports

__all__ = ["add"]

_log = structlog.get_logger("tunnel")


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "up",
        "serve the forwards, services and proxies that one file names, and follow its changes",
        "tunnel up --example, then tunnel up",
    )
    parser.add_argument(
        "-c",
        "--config",
        type=Path,
        metavar="FILE",
        help="the file (default: tunnel/tunnel.toml in XDG_CONFIG_HOME or ~/.config)",
    )
    group = parser.add_mutually_exclusive_group()
    group.add_argument(
        "--check",
        action="store_true",
        help="check the file and exit: print its mistakes or, if there are none, its entries",
    )
    group.add_argument("--example", action="store_true", help="write a commented FILE, unless it exists, and exit")
    group.add_argument("--schema", action="store_true", help="print the JSON schema of the file, and exit")
    add_rate_option(parser, default="the rate in the file's [relay], or no limit")
    add_events_option(parser)
    add_relay_options(parser, has_file=True)
    parser.set_defaults(run=run, serves=True)


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal stops the process, or do what one of the options asks for."""
    path = arguments.config or default_path()
    if arguments.schema:
        show_json(json_schema(), is_indented=True)
    elif arguments.example:
        _write_example(path)
    elif arguments.check:
        return _check(path, arguments)
    else:
        return _serve(path, arguments)
    return OK


def _write_example(path: Path) -> None:
    try:
        make_private_directory(path.parent)
        write_new(path, EXAMPLE)
    except FileExistsError:
        raise UsageError(f"{path} exists and is not overwritten: name another file with -c FILE") from None
    except OSError as error:
        raise UsageError(f"{path} cannot be written: {error.strerror}: name another file with -c FILE") from None
    option = option_of(path)
    show(f"{path} is written: edit it, then run `tunnel up --check{option}` and `tunnel up{option}`")


def _check(path: Path, arguments: argparse.Namespace) -> int:
    """Print what the file would do, or its mistakes."""
    try:
        read, settings = _loaded(path, arguments)
    except BrokenFileError as error:
        tell("\n".join(error.problems))
        return USAGE
    where = ", ".join(each.url for each in settings.each())
    show(f"{path}: {len(read.entries)} {'entry' if len(read.entries) == 1 else 'entries'} for {where}")
    for entry in read.entries.values():
        rate = f" at {entry.part.rate}" if entry.part.rate else ""
        show(f"  {entry.id}: {KINDS[entry.kind].leads(entry.part)}{rate}")
    return OK


def _loaded(path: Path, arguments: argparse.Namespace) -> tuple[ReadFile, RelaySettings]:
    """Read the file and the secrets that it names. Raises UsageError, also if no attachment can be made with them."""
    read = read_up_file(path, token_file=arguments.token_file)
    settings = chosen_settings(read, arguments)
    settings.check()
    return read, settings


def _serve(path: Path, arguments: argparse.Namespace) -> int:
    trace = trace_of(arguments)

    def load() -> tuple[ReadFile, RelaySettings]:
        read = read_up_file(path, token_file=arguments.token_file)
        settings = chosen_settings(read, arguments, trace)
        settings.check()
        return read, settings

    with asyncio.Runner(loop_factory=client_loop) as runner:
        return runner.run(_run(load, arguments.log or "warning"))


async def _run(load: Load, level: str) -> int:
    supervisor = Supervisor(*load(), load, say)
    say_ready()
    async with serve_reports(supervisor.report):
        with drawn(supervisor, level) if can_draw() else contextlib.nullcontext():
            return await until_stopped(supervisor.run(), supervisor.finish)


def say(event: str, text: str, *, is_bad: bool = False, **fields: str) -> None:
    """Say one line: for people on a terminal, otherwise as an event of the log."""
    say_status(text)
    if shows_people():
        tell(f"tunnel: {text}")
    elif is_bad:
        _log.warning(event, text=text, **fields)
    else:
        _log.info(event, text=text, **fields)
