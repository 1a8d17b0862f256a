"""The entry point of the command `tunnel-relay`: its arguments, exit codes and log."""

import argparse
from collections.abc import Sequence
from functools import partial

from tunnel import __version__
from tunnel.ground.exit_codes import EXIT_CODES
from tunnel.metrics.listener import add_metrics_option
from tunnel.process.command_line import (
    LOG_LEVELS,
    CommandAdder,
    CommandParser,
    add_carrier_limits,
    add_events_option,
    exit_code_of,
    queued_log,
)
from tunnel.process.gateway_options import TOKEN_FILES_HELP, Joined, add_path_options, add_same_users
from tunnel.process.unit_files import add_unit_options
from tunnel_servlet.access.instants import SECONDS_DIGITS_MAX, is_seconds
from tunnel_servlet.access.sources import source_of
from tunnel_servlet.audit.event import Kind
from tunnel_servlet.command import actions, audit, exit_process, install_unit, operating, users
from tunnel_servlet.command.files import DEFAULT_FILE
from tunnel_servlet.command.token_terms import WHEN_HELP, parse_when
from tunnel_servlet.config import ConfigError
from tunnel_servlet.web.live.tables import ROWS_MAX

__all__ = ["main", "make_parser"]

_COUNT_MAX = 1_000_000
_AS_SERVE = "decide as if `tunnel-relay serve` were given this option"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = make_parser().parse_args(argv)
    with queued_log(arguments.log, source_of, is_events=getattr(arguments, "events", False)):
        return exit_code_of(
            "tunnel-relay",
            lambda: int(arguments.run(arguments)),
            (ConfigError,),
            has_details=arguments.log == "debug",
        )


def make_parser() -> CommandParser:
    """Build the parser with all commands."""
    parser = CommandParser(
        prog="tunnel-relay",
        description="Run and manage a tunnel relay: the web service that carries tunnel connections to their targets.",
        epilog=EXIT_CODES,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--log", choices=LOG_LEVELS, default="info", help="log events of this level and above (default: info)"
    )
    commands = CommandAdder(parser)
    for add in (
        _add_init,
        _add_serve,
        _add_exit,
        _add_user,
        _add_rule,
        _add_check,
        _add_drain,
        _add_state,
        _add_audit,
        _add_ps,
        _add_kick,
        _add_install_unit,
    ):
        add(commands)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration file (default: relay.toml, if it exists)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_allow(parser: argparse.ArgumentParser, what: str = "let every user reach this target") -> None:
    parser.add_argument("--allow", action="append", default=[], metavar="HOST:PORT", help=f"{what}; repeatable")


def _add_token_file(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--token-file",
        default="",
        metavar="FILE",
        help="write the token to this new file, which only you can read, instead of printing it",
    )


def _add_init(commands: CommandAdder) -> None:
    parser = commands.add(
        "init",
        "write a commented configuration file and print or store the first user's token",
        "tunnel-relay init relay.toml --token-file token",
    )
    parser.add_argument("file", metavar="FILE", help="name of the configuration file, such as relay.toml")
    _add_token_file(parser)
    parser.add_argument("--user", default="admin", help="name of the first user (default: admin)")
    _add_allow(parser, "write a rule that lets the first user reach this target (default: example.com:443)")
    _add_json(parser)
    parser.set_defaults(run=users.init)


def _add_serving(parser: argparse.ArgumentParser) -> None:
    """Add the options of `serve`."""
    _add_config(parser)
    parser.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="address to listen on, in place of the configured addresses; repeatable",
    )
    _add_allow(parser)
    _add_open(parser)
    parser.add_argument(
        "--exit",
        choices=("inline", "none"),
        default="",
        help="inline: this process connects to targets, too; none: only attached exits do, see tunnel-relay exit "
        "(default: as configured, else inline)",
    )
    parser.add_argument(
        "--admin",
        default="",
        metavar="HOST:PORT|unix:PATH",
        help="address for health checks, metrics and the commands of the operator; never make it public. Of a Unix "
        "socket, only the relay's user can make use",
    )
    _add_trace(parser)


def _add_open(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--open",
        action="store_true",
        help="accept clients without a token, as a user called open; only if the relay listens on loopback alone. They "
        "may do what --allow and the table [everyone] in the configuration file allow. Without a configuration file "
        "they may use every service. With neither a configuration file nor --allow, they may also reach every target",
    )


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", default="", metavar="DIR", help="write trace files to DIR, for tunnel-traces")


def _add_serve(commands: CommandAdder) -> None:
    example = "tunnel-relay serve --open --listen 127.0.0.1:8080 --allow 127.0.0.1:5432"
    parser = commands.add(
        "serve",
        "run the relay; after SIGTERM, connections that still move bytes may finish; SIGINT stops it at once",
        example,
    )
    _add_serving(parser)
    add_events_option(parser, "listening, reloaded and stopped")
    parser.set_defaults(run=actions.run_relay)


def _add_check(commands: CommandAdder) -> None:
    parser = commands.add(
        "check", "check whether `serve` would start with this configuration", "tunnel-relay check -c relay.toml"
    )
    _add_serving(parser)
    _describe_as_serve(parser)
    _add_json(parser)
    parser.set_defaults(run=actions.check)


def _describe_as_serve(parser: CommandParser) -> None:
    """Describe the options of `serve` for a command that only decides what `serve` would do with them."""
    parser.describe(("listen", "allow", "open", "exit", "admin", "trace"), _AS_SERVE)


def _add_exit(commands: CommandAdder) -> None:
    example = "TUNNEL_TOKEN=... tunnel-relay exit --relay https://relay.example --name berlin --allow db.internal:5432"
    parser = commands.add(
        "exit",
        "attach to a relay and connect to targets for it, from this process; "
        "after SIGTERM, connections that still move bytes may finish",
        example,
    )
    parser.add_argument(
        "--relay",
        action=Joined,
        metavar="URL",
        help="URL of the relay; required, except with --show-key; repeat it to serve several relays at once",
    )
    parser.add_argument(
        "--key",
        default="",
        metavar="FILE",
        help="encrypt connections from end to end with the key in this file; a FILE that does not exist is created. "
        "Without this option, the exit uses the key in ~/.config/tunnel/exit.pem. If that file is missing, "
        "--encryption require and --show-key create it, and otherwise the exit has no key",
    )
    parser.add_argument(
        "--show-key",
        action="store_true",
        help="print the fingerprint of the public key, for `tunnel peers trust` and --peer-key, and end; the key is "
        "created if it does not exist",
    )
    parser.add_argument(
        "--encryption",
        choices=("off", "auto", "require"),
        default="auto",
        help="auto: encrypt for clients that offer it, if there is a key. require: refuse clients that do not offer "
        "it, and create a key if there is none. off: never encrypt (default: auto)",
    )
    parser.add_argument(
        "--name",
        help="name of this exit, which replaces an attached exit of the same user and name; exits with different names "
        "share the connections (default: a name that only this exit has, also when it is started again)",
    )
    parser.add_argument(
        "--token-file",
        default="",
        action=Joined,
        metavar="FILE",
        help=f"file with the token; {TOKEN_FILES_HELP} (default: the token in TUNNEL_TOKEN)",
    )
    add_same_users(parser)
    add_path_options(parser)
    add_carrier_limits(parser)
    parser.add_argument(
        "--give-up-after",
        type=_seconds,
        metavar="SECONDS",
        help="end with exit code 6 when the relay has not answered for this number of seconds (default: keep trying)",
    )
    add_metrics_option(parser)
    _add_exit_rules(parser)
    _add_trace(parser)
    add_events_option(parser, "attached, disconnected and reconnected")
    parser.set_defaults(run=exit_process.run_exit)


def _add_exit_rules(parser: argparse.ArgumentParser) -> None:
    """Add the options for the rules of an exit, which apply in addition to those of its relay."""
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="configuration file with the rules of this exit, under [everyone] and [users.NAME] (default: relay.toml, "
        "if it exists). Both the exit's rules and the relay's must allow a target. Without a file, --allow is required",
    )
    _add_allow(parser, "let this exit connect to the target for every user, if the relay's rules allow it, too")


_ROTATE = (
    "give a user another token and print it, once; the previous one stays valid until it is revoked, or until the next "
    "rotation: a user has at most two tokens. A token that has expired makes room before a valid one"
)


_LIST = (
    "list users, and for each token its key id (8 hex digits, which are not secret), its creation date, until when it "
    "is valid, its last use to the minute, its limits and its description"
)


def _add_user(commands: CommandAdder) -> None:
    outer = commands.add("user", "manage users and their tokens", "tunnel-relay user add ann -c relay.toml")
    actions = CommandAdder(outer)
    for action, what in (
        ("add", "add a user and print the user's token, once"),
        ("rotate", _ROTATE),
        ("revoke", "revoke a user's tokens"),
        ("expire", "set until when a user's tokens are valid; what uses one that has expired ends"),
        ("list", _LIST),
    ):
        name = {"list": "", "expire": " ann 30d"}.get(action, " ann")
        parser = actions.add(action, what, f"tunnel-relay user {action}{name} -c relay.toml")
        if action != "list":
            parser.add_argument("name", metavar="NAME", help="name of the user")
        if action in ("add", "rotate"):
            _add_token_file(parser)
            _add_terms(parser)
        if action == "expire":
            parser.add_argument("when", type=parse_when, metavar="WHEN", help=WHEN_HELP)
        if action in ("revoke", "expire"):
            parser.add_argument(
                "--key",
                default="",
                metavar="ID",
                help=f"{action} only the token with this key id, as `tunnel-relay user list` shows it",
            )
        parser.add_argument(
            "-c",
            "--config",
            default=DEFAULT_FILE,
            metavar="FILE",
            help=f"configuration file, which names the tokens file (default: {DEFAULT_FILE})",
        )
        _add_json(parser)
        parser.set_defaults(run=users.user, action=action)


def _add_terms(parser: argparse.ArgumentParser) -> None:
    """Add the options for what limits a new token."""
    parser.add_argument(
        "--expires",
        type=parse_when,
        metavar="WHEN",
        help=f"until when the token is valid: {WHEN_HELP} (default: never; with --single-use, 24h)",
    )
    parser.add_argument("--description", default="", metavar="TEXT", help="what the token is for, for `user list`")
    parser.add_argument(
        "--single-use",
        action="store_true",
        help="let only one endpoint use the token: the first one that attaches with it, until it ends",
    )
    parser.add_argument(
        "--endpoints-max",
        type=_count,
        default=0,
        metavar="N",
        help="let at most N endpoints be attached with the token at one time (default: as many as the user may have)",
    )


def _add_rule(commands: CommandAdder) -> None:
    outer = commands.add("rule", "test the rules of the configuration", "tunnel-relay rule check ann db.internal:5432")
    parser = CommandAdder(outer).add(
        "check", "show whether a user may reach a target", "tunnel-relay rule check ann db.internal:5432 --resolve"
    )
    parser.add_argument("name", metavar="NAME", help="name of the user")
    parser.add_argument("target", metavar="HOST:PORT", help="the target: HOST:PORT, or the name of a service")
    parser.add_argument(
        "--resolve", action="store_true", help="also check the addresses to which the name resolves on this machine"
    )
    _add_config(parser)
    _add_allow(parser)
    _add_open(parser)
    _describe_as_serve(parser)
    _add_json(parser)
    parser.set_defaults(run=actions.try_rule)


def _add_drain(commands: CommandAdder) -> None:
    example = "tunnel-relay drain -c relay.toml --timeout 60"
    parser = commands.add(
        "drain",
        "let a running relay finish: it refuses new connections and stops when the open ones have ended",
        example,
    )
    parser.add_argument(
        "--timeout",
        type=_seconds,
        metavar="S",
        help="cut the connections that are still open after S seconds (default: drain_seconds of the relay's "
        "configuration, which is 60 unless set). The exit code is 6 if any was cut",
    )
    _add_admin(parser)
    _add_json(parser)
    parser.set_defaults(run=actions.drain)


def _add_state(commands: CommandAdder) -> None:
    parser = commands.add(
        "state",
        "print the state of a running relay as JSON: counters, errors of reloads, waiting times of users",
        "tunnel-relay state -c relay.toml",
    )
    _add_admin(parser)
    parser.set_defaults(run=actions.state)


def _add_audit(commands: CommandAdder) -> None:
    parser = commands.add(
        "audit",
        "show who reached what through the relay, or was refused: the events that [audit] has written to files",
        "tunnel-relay audit --user ann --since 1h --refused",
    )
    parser.add_argument("--user", default="", metavar="NAME", help="only events of this user")
    parser.add_argument(
        "--since",
        default="",
        metavar="TIME",
        help="only events since then: 90s, 30m, 1h, 2d, or 2026-11-29T16:30 (UTC)",
    )
    parser.add_argument("--until", default="", metavar="TIME", help="only events before then, written in the same way")
    parser.add_argument(
        "--target",
        default="",
        metavar="HOST[:PORT]",
        help="only events of this target or service, as the user named it",
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--refused", action="store_true", help="only what was refused")
    which.add_argument(
        "--event",
        action="append",
        default=[],
        choices=[kind.value for kind in Kind],
        metavar="KIND",
        help="only events of this kind, such as connection_ended; repeatable. docs/AUDIT.md lists them",
    )
    parser.add_argument(
        "--totals",
        action="store_true",
        help="show sums instead: what each user did, which rules allowed most, and which targets were refused most",
    )
    parser.add_argument(
        "--file", default="", metavar="FILE", help="file of the audit, such as a copy (default: from the configuration)"
    )
    _add_config(parser)
    _add_json(parser)
    parser.set_defaults(run=audit.read_audit)


def _add_ps(commands: CommandAdder) -> None:
    parser = commands.add(
        "ps",
        "list the connections of a running relay: who reaches what, through which exit or service, and how much",
        "tunnel-relay ps --user ann --sort bytes -c relay.toml",
    )
    parser.add_argument(
        "table",
        nargs="?",
        choices=tuple(operating.TABLES),
        default="connections",
        help="what to list (default: connections)",
    )
    parser.add_argument("--user", default="", metavar="NAME", help="only what this user opened, serves or is")
    parser.add_argument("--find", default="", metavar="TEXT", help="only rows with this text in a name, in any case")
    parser.add_argument(
        "--sort",
        default="",
        metavar="KEY",
        help="sort connections by user, target, state, age, bytes, up, down or waiting; attachments by user, name, "
        "age, silent, connections or waiting; users by user, attachments, connections, held or bytes; services by "
        "name, user or pending; denials, the last requests that the rules refused, by user, what or count. "
        "The largest number comes first (default: the oldest first)",
    )
    parser.add_argument("--reverse", action="store_true", help="print the rows in the opposite order")
    parser.add_argument(
        "--limit",
        type=_rows,
        default=1000,
        metavar="N",
        help=f"print at most N rows (default: 1000, at most: {ROWS_MAX})",
    )
    _add_admin(parser)
    _add_json(parser)
    parser.set_defaults(run=operating.ps)


def _add_kick(commands: CommandAdder) -> None:
    parser = commands.add(
        "kick",
        "end a connection, an attachment or all attachments of a user, at once; exit code 6 if there is no such thing",
        "tunnel-relay kick c17-9f3a -c relay.toml",
    )
    parser.add_argument("id", nargs="?", default="", metavar="ID", help="id of the connection, as `ps` shows it")
    parser.add_argument(
        "--attachment",
        default="",
        metavar="ID",
        help="end this attachment, as `ps attachments` shows it, and its connections; its endpoint may attach again",
    )
    parser.add_argument(
        "--user",
        default="",
        metavar="NAME",
        help="end all attachments of this user and their connections; the user's endpoints may attach again, until "
        "`user revoke` keeps them out",
    )
    _add_admin(parser)
    _add_json(parser)
    parser.set_defaults(run=operating.kick)


def _add_install_unit(commands: CommandAdder) -> None:
    parser = commands.add(
        "install-unit",
        "write a systemd unit that keeps a relay or an exit running, with no rights that it does not need",
        "tunnel-relay install-unit --print serve -c /var/lib/tunnel-relay/relay.toml",
    )
    add_unit_options(parser, "tunnel-relay, or tunnel-exit", install_unit.COMMANDS, install_unit.DEFAULT)
    parser.set_defaults(run=partial(install_unit.install_unit, parse=lambda words: make_parser().parse_args(words)))


def _add_admin(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the admin listener, and the file with the secret for it."""
    parser.add_argument(
        "--admin",
        default="",
        metavar="HOST:PORT|unix:PATH",
        help="admin listener of the relay, on this machine (default: from the configuration)",
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="the relay's configuration file, whose tokens file holds the admin secret (default: relay.toml, if it "
        "exists)",
    )


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _COUNT_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {_COUNT_MAX}")
    return int(text)


def _seconds(text: str) -> int:
    if not is_seconds(text):
        raise argparse.ArgumentTypeError(
            f"{text[:40]!r} is not a whole number of seconds of at most {SECONDS_DIGITS_MAX} digits"
        )
    return int(text)


def _rows(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and 0 < int(text) <= ROWS_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from 1 to {ROWS_MAX}")
    return int(text)
