"""The entry point of the command `tunnel-broker`: its arguments, exit codes and log."""

import argparse
from collections.abc import Callable, Sequence
from functools import partial

from tunnel import __version__
from tunnel.ground.exit_codes import EXIT_CODES
from tunnel.process.command_line import (
    LOG_LEVELS,
    CommandAdder,
    CommandParser,
    add_events_option,
    exit_code_of,
    queued_log,
)
from tunnel.process.unit_files import add_unit_options
from tunnel.refusals import OR_WAIT
from tunnel_client.cli.broker import install_unit, look, serve
from tunnel_client.cli.options import add_relay_options, positive_seconds
from tunnel_client.cli.service_key import add_key_options
from tunnel_client.errors import UsageError

__all__ = ["main", "make_parser"]

_DESCRIPTION = (
    "Run a message broker, and look at a running one. Producers append messages to the partitions of topics, and "
    "groups of consumers read them, each at its own position."
)
_EPILOG = f"{EXIT_CODES}; lag --over ends with 6, too, if a group is too far behind"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    arguments = make_parser().parse_args(argv)
    with queued_log(arguments.log, is_events=getattr(arguments, "events", False)):
        return exit_code_of(
            "tunnel-broker",
            lambda: int(arguments.run(arguments)),
            (UsageError,),
            has_details=arguments.log == "debug",
            reword=lambda text: text.replace(OR_WAIT, ""),  # its commands have no such option
        )


def make_parser() -> CommandParser:
    """Build the parser with all commands."""
    parser = CommandParser(prog="tunnel-broker", description=_DESCRIPTION, epilog=_EPILOG)
    parser.add_argument("--version", action="version", version=f"%(prog)s {__version__}")
    parser.add_argument(
        "--log", choices=LOG_LEVELS, default="info", help="log events of this level and above (default: info)"
    )
    commands = CommandAdder(parser)
    for add in (_add_serve, _add_topics, _add_topic, _add_lag, _add_group, _add_read, _add_metrics, _add_install_unit):
        add(commands)
    return parser


def _add_serve(commands: CommandAdder) -> None:
    parser = commands.add(
        "serve",
        "run a broker; SIGTERM makes it store everything and end",
        "tunnel-broker serve --dir data --listen 127.0.0.1:9100 --topic orders:4",
    )
    parser.add_argument("--dir", required=True, metavar="DIR", help="directory of the messages; made if it is missing")
    parser.add_argument(
        "--listen",
        action="append",
        default=[],
        metavar="HOST:PORT",
        help="accept TCP connections here; repeatable. There is no password: anybody who can connect may read, write "
        "and create topics (default: 127.0.0.1:9100, or nothing with --service)",
    )
    parser.add_argument(
        "--service",
        default="",
        metavar="NAME",
        help="accept connections through the relay, as the service of this name",
    )
    parser.add_argument(
        "--topic",
        action="append",
        default=[],
        metavar="NAME[:N[:memory[:POLICY]]]",
        help="create this topic, with N partitions (default: 1); the word memory keeps it in memory alone. POLICY says "
        "which message is discarded when a topic in memory is full: oldest, newest, priority (the one of the lowest "
        "priority) or expired (the one that expires first) (default: oldest); repeatable",
    )
    parser.add_argument(
        "--only-these-topics", action="store_true", help="refuse messages for other topics instead of creating them"
    )
    _add_storage(parser)
    _add_replicas_and_limits(parser)
    add_key_options(parser)
    add_events_option(parser)
    add_relay_options(parser, accepts=True)
    parser.set_defaults(run=serve.run)


def _add_storage(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("storage")
    group.add_argument(
        "--flush-messages",
        type=_count,
        default=1000,
        metavar="N",
        help="write a partition to the disk when N of its messages are in memory alone, or earlier, if a producer or a "
        "reader waits for one of them (default: 1000)",
    )
    group.add_argument(
        "--flush-after",
        type=positive_seconds,
        default=1.0,
        metavar="S",
        help="write a partition to the disk when a message has been in memory alone for S seconds (default: 1)",
    )
    group.add_argument(
        "--retain-bytes",
        type=_size,
        metavar="SIZE",
        help="remove the oldest messages of a partition that is larger than SIZE, such as 10g "
        "(default: keep everything)",
    )
    group.add_argument(
        "--retain-for",
        type=positive_seconds,
        metavar="S",
        help="remove messages that are older than S seconds (default: keep everything)",
    )
    group.add_argument(
        "--segment-bytes",
        type=_size,
        default=64 << 20,
        metavar="SIZE",
        help="size at which a segment ends and a new one begins; segments are the files of a partition, and "
        "--retain-bytes and --retain-for remove whole segments (default: 64m)",
    )
    group.add_argument(
        "--reserve",
        type=_size,
        default=64 << 20,
        metavar="SIZE",
        help="refuse messages while the disk has less free space than this (default: 64m)",
    )


def _add_replicas_and_limits(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("replicas")
    group.add_argument(
        "--replica",
        default="",
        metavar="ADDRESS",
        help="redirect consumers that are far behind to this replica; give the address by which consumers reach it",
    )
    group.add_argument(
        "--behind",
        type=_size,
        default=64 << 20,
        metavar="SIZE",
        help="a consumer is far behind when it has more than SIZE of a partition still to read (default: 64m), or when "
        "the messages that it reads next are no longer in memory",
    )
    group.add_argument(
        "--replica-of",
        default="",
        metavar="HOST:PORT",
        help="be a replica of the broker at this address: copy its topics, and redirect consumers to that broker "
        "when they have caught up",
    )
    group = parser.add_argument_group("limits")
    for name, default, what in (
        ("partitions", 1000, "largest number of partitions, of all topics together"),
        ("connections", 1000, "largest number of simultaneous connections"),
    ):
        group.add_argument(
            f"--max-{name}",
            type=_count,
            default=default,
            metavar="N",
            help=f"{what}; one user or address may have no more than remain free (default: {default})",
        )
    group.add_argument(
        "--positions-for",
        type=positive_seconds,
        default=7 * 86_400.0,
        metavar="S",
        help="remove the position of a group that has had no member and stored nothing for S seconds; the group then "
        "begins with the oldest message again (default: 604800, a week)",
    )


def _add_install_unit(commands: CommandAdder) -> None:
    parser = commands.add(
        "install-unit",
        "write a systemd unit that keeps a broker running, with no rights that it does not need",
        "tunnel-broker install-unit serve --dir /var/lib/tunnel-broker/messages --topic orders:4",
    )
    add_unit_options(parser, "tunnel-broker", ("serve",), "none; serve needs --dir")
    parser.set_defaults(run=partial(install_unit.run, parse=lambda words: make_parser().parse_args(words)))


def _add_address(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--broker",
        default="127.0.0.1:9100",
        metavar="ADDRESS",
        help="address of the broker. HOST:PORT: connect directly or, if the option --relay is given, through the relay "
        "(TUNNEL_RELAY and a stored relay have no effect). Name of a service: connect through the relay (default: "
        "127.0.0.1:9100)",
    )
    add_relay_options(parser)


def _add_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", action="store_true", help="print the result as JSON")


def _add_topics(commands: CommandAdder) -> None:
    parser = commands.add("topics", "list topics, their partitions, offsets and sizes", "tunnel-broker topics")
    _add_json(parser)
    _add_address(parser)
    parser.set_defaults(run=look.topics)


def _add_topic(commands: CommandAdder) -> None:
    text = (
        "delete a topic with its messages and the positions of all groups; only its owner may do so, or this command "
        "on the machine of the broker"
    )
    _add_deletion(commands, "topic", text, "orders", look.delete_topic)


def _add_group(commands: CommandAdder) -> None:
    text = (
        "delete the positions of a group without members; a group of this name begins with the oldest messages again. "
        "Only the owner may do so, or this command on the machine of the broker"
    )
    _add_deletion(commands, "group", text, "billing", look.delete_group)


def _add_deletion(
    commands: CommandAdder, kind: str, text: str, name: str, run: Callable[[argparse.Namespace], int]
) -> None:
    """Add the command that deletes things of a kind; its example deletes the one of this name."""
    example = f"tunnel-broker {kind} delete {name}"
    parser = CommandAdder(commands.add(kind, f"delete a {kind}", example)).add("delete", text, example)
    parser.add_argument("name", metavar=kind.upper(), help=f"name of the {kind}")
    _add_json(parser)
    _add_address(parser)
    parser.set_defaults(run=run)


def _add_lag(commands: CommandAdder) -> None:
    parser = commands.add("lag", "show how far each group has read", "tunnel-broker lag billing")
    parser.add_argument("group", nargs="?", default="", metavar="GROUP", help="only this group")
    parser.add_argument(
        "--over",
        type=_count,
        metavar="N",
        help="end with exit code 6 if a group is more than N messages behind in a partition, or if that is unknown",
    )
    _add_json(parser)
    _add_address(parser)
    parser.set_defaults(run=look.lag)


def _add_read(commands: CommandAdder) -> None:
    parser = commands.add("read", "print the messages of a topic", "tunnel-broker read orders --from -10")
    parser.add_argument("topic", metavar="TOPIC", help="name of the topic")
    parser.add_argument(
        "--partition",
        type=_count_or_zero,
        metavar="N",
        help="only this partition (default: all of them, one after the other or, with --follow, at the same time)",
    )
    parser.add_argument(
        "--from",
        dest="start",
        type=int,
        default=0,
        metavar="OFFSET",
        help="offset of the first message in each partition; a negative number counts from the end (default: the "
        "oldest message that the broker still has)",
    )
    parser.add_argument("--count", type=_count, metavar="N", help="print at most N messages (default: all)")
    parser.add_argument("--follow", action="store_true", help="go on with the messages that come later")
    parser.add_argument(
        "--json",
        action="store_true",
        help="print each message as a line of JSON, with its partition and offset (default: the payloads, a line each)",
    )
    _add_address(parser)
    parser.set_defaults(run=look.read)


def _add_metrics(commands: CommandAdder) -> None:
    parser = commands.add(
        "metrics", "print the broker's counters, in the text format of Prometheus", "tunnel-broker metrics"
    )
    _add_json(parser)
    _add_address(parser)
    parser.set_defaults(run=look.metrics)


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) < 1 << 40):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return int(text)


def _count_or_zero(text: str) -> int:
    return 0 if text == "0" else _count(text)


def _size(text: str) -> int:
    digits = text.rstrip("kKmMgGtT")
    unit = text[len(digits) :].lower()
    if not (digits.isascii() and digits.isdigit() and int(digits) > 0 and unit in _UNITS):
        raise argparse.ArgumentTypeError(f"{text!r} is not a size: write a number of bytes, or one with k, m, g or t")
    return int(digits) * _UNITS[unit]
