"""The entry point of the command `tunnel-relay`: its arguments, exit codes and log."""

import argparse
from collections.abc import Sequence

from tunnel import __version__
from tunnel.command_line import (
    LOG_LEVELS,
    CommandAdder,
    CommandParser,
    add_carrier_rates,
    add_events_option,
    exit_code_of,
    queued_log,
)
from tunnel.exit_codes import EXIT_CODES
from tunnel.gateway_options import add_gateway_options
from tunnel_servlet.access.sources import source_of
from tunnel_servlet.command import actions, exit_process, users
from tunnel_servlet.command.files import DEFAULT_FILE
from tunnel_servlet.config import ConfigError

__all__ = ["main", "make_parser"]

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
    for add in (_add_init, _add_serve, _add_exit, _add_user, _add_rule, _add_check, _add_drain, _add_state):
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
        metavar="HOST:PORT",
        help="address for health checks, `tunnel-relay drain` and `tunnel-relay state`; never make it public",
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
    parser.add_argument("--relay", metavar="URL", help="URL of the relay; required, except with --show-key")
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
        "--token-file", default="", metavar="FILE", help="file with the token (default: the token in TUNNEL_TOKEN)"
    )
    parser.add_argument(
        "--proxy",
        default="env",
        metavar="URL",
        help="URL of a proxy to the relay, @FILE for a file of mode 0600 that holds the URL (all users of this machine "
        "can see a password in a command line), or the word none for a direct connection (default: https_proxy, "
        "http_proxy or all_proxy)",
    )
    parser.add_argument(
        "--insecure-http",
        action="store_true",
        help="allow the token and any --header to cross a network without encryption, to an http:// relay or proxy on "
        "another machine; everybody on the way can read them (default: only if TUNNEL_INSECURE_HTTP is 1)",
    )
    add_carrier_rates(parser)
    parser.add_argument(
        "--give-up-after",
        type=_seconds,
        metavar="SECONDS",
        help="end with exit code 6 when the relay has not answered for this number of seconds (default: keep trying)",
    )
    parser.add_argument("--ca", metavar="FILE", help="PEM file with the authorities to trust instead of the system's")
    parser.add_argument(
        "--cert", metavar="FILE", help="PEM file with your certificate and its key, if the relay asks for one"
    )
    add_gateway_options(parser)
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
    "rotation: a user has at most two tokens"
)


def _add_user(commands: CommandAdder) -> None:
    outer = commands.add("user", "manage users and their tokens", "tunnel-relay user add ann -c relay.toml")
    actions = CommandAdder(outer)
    for action, what in (
        ("add", "add a user and print the user's token, once"),
        ("rotate", _ROTATE),
        ("revoke", "revoke a user's tokens"),
        (
            "list",
            "list users, and for each token its key id (8 hex digits, which are not secret) and its creation date",
        ),
    ):
        name = "" if action == "list" else " ann"
        parser = actions.add(action, what, f"tunnel-relay user {action}{name} -c relay.toml")
        if action != "list":
            parser.add_argument("name", metavar="NAME", help="name of the user")
        if action in ("add", "rotate"):
            _add_token_file(parser)
        if action == "revoke":
            parser.add_argument(
                "--key",
                default="",
                metavar="ID",
                help="revoke only the token with this key id, as `tunnel-relay user list` shows it",
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
        "configuration, which is 60 unless set)",
    )
    _add_admin(parser)
    parser.set_defaults(run=actions.drain)


def _add_state(commands: CommandAdder) -> None:
    parser = commands.add(
        "state",
        "print the state of a running relay as JSON: counters, errors of reloads, waiting times of users",
        "tunnel-relay state -c relay.toml",
    )
    _add_admin(parser)
    parser.set_defaults(run=actions.state)


def _add_admin(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the admin listener, and the file with the secret for it."""
    parser.add_argument(
        "--admin",
        default="",
        metavar="HOST:PORT",
        help="admin listener of the relay, on this machine (default: from the configuration)",
    )
    parser.add_argument(
        "-c",
        "--config",
        metavar="FILE",
        help="the relay's configuration file, whose tokens file holds the admin secret (default: relay.toml, if it "
        "exists)",
    )


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of seconds")
    return int(text)
