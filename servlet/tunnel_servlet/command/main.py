"""The command `tunnel-relay`: its arguments, its exit codes, its log."""

import argparse
from collections.abc import Sequence

from tunnel import __version__
from tunnel.command_line import LOG_LEVELS, CommandAdder, configure_log, exit_code_of
from tunnel.exit_codes import EXIT_CODES
from tunnel_servlet.command import actions, users
from tunnel_servlet.command.actions import DEFAULT_FILE
from tunnel_servlet.config import ConfigError

__all__ = ["main", "make_parser"]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; its exit code."""
    arguments = make_parser().parse_args(argv)
    configure_log(arguments.log)
    return exit_code_of("tunnel-relay", lambda: int(arguments.run(arguments)), (ConfigError,))


def make_parser() -> argparse.ArgumentParser:
    """All commands."""
    parser = argparse.ArgumentParser(
        prog="tunnel-relay", description="The relay of the tunnel.", epilog=EXIT_CODES, allow_abbrev=False
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument("--log", choices=LOG_LEVELS, default="info", help="what to log (default: info)")
    commands = CommandAdder(parser)
    for add in (_add_init, _add_serve, _add_exit, _add_user, _add_rule, _add_check, _add_drain):
        add(commands)
    return parser


def _add_config(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("-c", "--config", metavar="FILE", help="configuration (default: relay.toml, if there is one)")


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print JSON")


def _add_allow(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--allow", action="append", default=[], metavar="H:P", help="allow this target to every user")


def _add_init(commands: CommandAdder) -> None:
    parser = commands.add(
        "init", "write a commented configuration, print the first token once", "tunnel-relay init relay.toml"
    )
    parser.add_argument("file", metavar="FILE")
    parser.add_argument("--user", default="admin", help="name of the first user (default: admin)")
    _add_json(parser)
    parser.set_defaults(run=users.init)


def _add_serving(parser: argparse.ArgumentParser) -> None:
    """What decides how a relay is served."""
    _add_config(parser)
    parser.add_argument("--listen", action="append", default=[], metavar="H:P", help="listen here instead; repeatable")
    _add_allow(parser)
    parser.add_argument("--open", action="store_true", help="ask for no token; on loopback only")
    parser.add_argument("--exit", choices=("inline", "none"), default="", help="who dials TCP targets")
    parser.add_argument("--admin", default="", metavar="H:P", help="the admin listener")
    _add_trace(parser)


def _add_trace(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--trace", default="", metavar="DIR", help="write traces there, for tunnel-traces")


def _add_serve(commands: CommandAdder) -> None:
    example = "tunnel-relay serve --open --listen 127.0.0.1:8080 --allow 127.0.0.1:5432"
    parser = commands.add("serve", "run the relay; SIGTERM drains it", example)
    _add_serving(parser)
    parser.set_defaults(run=actions.run_relay)


def _add_check(commands: CommandAdder) -> None:
    parser = commands.add("check", "say whether `serve` would start", "tunnel-relay check -c relay.toml")
    _add_serving(parser)
    _add_json(parser)
    parser.set_defaults(run=actions.check)


def _add_exit(commands: CommandAdder) -> None:
    example = "TUNNEL_TOKEN=... tunnel-relay exit --relay https://relay.example --name berlin --allow db.internal:5432"
    parser = commands.add("exit", "dial TCP targets for a relay, from this process", example)
    parser.add_argument("--relay", required=True, metavar="URL")
    parser.add_argument("--name", default="exit", help="an exit of the same name is replaced (default: exit)")
    parser.add_argument("--token-file", default="", metavar="FILE", help="holds the token (default: TUNNEL_TOKEN)")
    parser.add_argument("--proxy", default="env", metavar="URL", help="proxy to the relay (default: from environment)")
    parser.add_argument("--ca", metavar="FILE", help="certificates to trust instead of the system's")
    parser.add_argument("--cert", metavar="FILE", help="our certificate and its key, if the relay asks for one")
    _add_config(parser)
    _add_allow(parser)
    _add_trace(parser)
    parser.set_defaults(run=actions.run_exit)


def _add_user(commands: CommandAdder) -> None:
    outer = commands.add("user", "add users, give and take tokens", "tunnel-relay user add ann -c relay.toml")
    actions = CommandAdder(outer)
    for action, what in (
        ("add", "add a user, print the token once"),
        ("rotate", "give a user another token; the previous one counts until it is revoked"),
        ("revoke", "take a user's tokens away"),
        ("list", "list users and the ids of their tokens"),
    ):
        name = "" if action == "list" else " ann"
        parser = actions.add(action, what, f"tunnel-relay user {action}{name} -c relay.toml")
        if action != "list":
            parser.add_argument("name", metavar="NAME")
        if action == "revoke":
            parser.add_argument("--key", default="", metavar="ID", help="only the token with this key id")
        parser.add_argument("-c", "--config", default=DEFAULT_FILE, metavar="FILE")
        _add_json(parser)
        parser.set_defaults(run=users.user, action=action)


def _add_rule(commands: CommandAdder) -> None:
    outer = commands.add("rule", "try the rules", "tunnel-relay rule check ann db.internal:5432")
    parser = CommandAdder(outer).add(
        "check", "say whether a user may reach a target", "tunnel-relay rule check ann db.internal:5432 --resolve"
    )
    parser.add_argument("name", metavar="NAME")
    parser.add_argument("target", metavar="HOST:PORT", help="or the name of a service")
    parser.add_argument("--resolve", action="store_true", help="also check what the name resolves to here")
    _add_config(parser)
    _add_json(parser)
    parser.set_defaults(run=actions.try_rule)


def _add_drain(commands: CommandAdder) -> None:
    example = "tunnel-relay drain -c relay.toml --timeout 60"
    parser = commands.add("drain", "let a relay end its connections and stop; wait for it", example)
    parser.add_argument("--timeout", type=_seconds, metavar="S", help="stop it after so many seconds at the latest")
    parser.add_argument("--admin", default="", metavar="H:P", help="its admin listener (default: that of the file)")
    _add_config(parser)
    parser.set_defaults(run=actions.drain)


def _seconds(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of seconds")
    return int(text)
