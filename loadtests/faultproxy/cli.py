"""The command line: arguments to options."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from loadtests.faultproxy.grammar import parse_address, parse_probability, parse_size_bytes
from loadtests.faultproxy.options import (
    Blackhole,
    Delay,
    Drop,
    FaultProxyOptions,
    Flip,
    Html,
    IdleCut,
    LateDuplicate,
    Status,
    Truncate,
    parse_upstream,
)

__all__ = ["Arguments", "parse_arguments", "trace_path"]

TRACE_FILE = "faultproxy.jsonl"

EPILOG = """
Probabilities are from 0 to 1; durations have a unit (50ms, 1.5s, 2min), sizes may have one (64KiB, 1MiB). Words behind
a colon are optional. The same seed and the same order of exchanges give the same faults.

An exchange meets at most one of these, the earlier the stronger: --status and --html, --drop-request, --status and
--html with :after, --drop-response. The other faults come on top. Tunnels of CONNECT and Upgrade are delayed, cut,
flipped, idle and black as bodies are.

example, hard weather for a relay on port 8080:
  python -m loadtests.faultproxy --listen 127.0.0.1:3128 --upstream http://127.0.0.1:8080 --seed 7 \\
    --drop-request 0.05 --drop-response 0.05:silent --duplicate 0.02 --late-duplicate 0.01:60s --delay 50ms±20ms \\
    --truncate 0.01 --flip 0.01:bits=8 --status 503:0.02:retry=1s --html 0.01 --limit 1MiB --idle-cut 20s \\
    --blackhole 30s@60s --trace traces/ --json

exit codes: 0 ended by SIGINT or SIGTERM; 2 usage, or the address or the trace file cannot be used
"""

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """What the command was asked for."""

    options: FaultProxyOptions
    trace: Path | None
    json: bool


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Exit with 2 and a message about what was expected, when there is an error."""
    given = vars(_parser().parse_args(arguments))
    trace, json = given.pop("trace"), given.pop("json")
    given["statuses"] = tuple(given.pop("status"))
    return Arguments(FaultProxyOptions(**given), trace, json)


def trace_path(trace: Path) -> Path:
    """The file to write: in a directory, the file has our name. A path without a suffix is a directory; it is made."""
    if trace.is_dir() or not trace.suffix:
        trace.mkdir(parents=True, exist_ok=True)
        return trace / TRACE_FILE
    return trace


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.faultproxy",
        description="An HTTP/1.1 proxy, reverse and forward, that hurts exchanges on purpose.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    _add_places(parser)
    _add_faults(parser)
    _add_behaviour(parser)
    return parser


def _add_places(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("who and where")
    group.add_argument(
        "--listen",
        type=_checked(parse_address),
        required=True,
        metavar="HOST:PORT",
        help="port 0: any. Whoever reaches it may use the forward proxy",
    )
    group.add_argument(
        "--upstream",
        type=_checked(parse_upstream),
        metavar="URL",
        help="where requests for a path go; requests for absolute URLs, and CONNECT, go where they say",
    )
    group.add_argument("--seed", type=int, metavar="N", help="default 0")
    group.add_argument("--node", metavar="NAME", help="the name in traces; default faultproxy")
    group.add_argument(
        "--trace",
        type=Path,
        default=None,
        metavar="DIR/FILE",
        help=f"write a record for each fault; into {TRACE_FILE} if it is a directory",
    )
    group.add_argument("--json", action="store_true", default=False, help="print the counters as JSON at the end")


def _add_faults(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("faults by chance")
    drop = _checked(Drop.parse)
    group.add_argument(
        "--drop-request",
        type=drop,
        metavar="P[:silent]",
        help="upstream never sees it; the client's connection is closed, or stays open and nothing comes",
    )
    group.add_argument(
        "--drop-response", type=drop, metavar="P[:silent]", help="upstream has answered; nobody learns it"
    )
    group.add_argument(
        "--duplicate", type=_checked(parse_probability), metavar="P", help="upstream gets the request twice, at once"
    )
    group.add_argument(
        "--late-duplicate", type=_checked(LateDuplicate.parse), metavar="P:DURATION", help="once more, so much later"
    )
    group.add_argument(
        "--delay",
        type=_checked(Delay.parse),
        metavar="D[±J]",
        help="each way: every message waits D, give or take up to J (also +-); tunnels and chunked bodies flow as late",
    )
    group.add_argument(
        "--truncate",
        type=_checked(Truncate.parse),
        metavar="P[:request|:response][:short|:cut]",
        help="bodies end early: with a length that fits (short) or with the connection (cut); else either by chance",
    )
    group.add_argument(
        "--flip",
        type=_checked(Flip.parse),
        metavar="P[:request|:response][:bits=N]",
        help="from one to N bits of a body flip; N is 1, or up to 64",
    )
    group.add_argument(
        "--status",
        type=_checked(Status.parse),
        action="append",
        default=[],
        metavar="CODE:P[:after][:retry=DURATION]",
        help="answer so instead of asking upstream, or after it has answered; may be repeated",
    )
    group.add_argument("--html", type=_checked(Html.parse), metavar="P[:after]", help="the same with a login page, 200")


def _add_behaviour(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("what the proxy is like")
    group.add_argument(
        "--limit",
        dest="limit_bytes",
        type=_checked(parse_size_bytes),
        metavar="SIZE",
        help="413 for larger request bodies",
    )
    group.add_argument("--buffer", action="store_true", help="collect whole bodies, both ways, before passing them on")
    group.add_argument("--no-upgrade", action="store_true", help="strip Upgrade from requests")
    group.add_argument(
        "--idle-cut",
        type=_checked(IdleCut.parse),
        metavar="DURATION[:silent]",
        help="reset client connections on which no byte moved for so long; silent: let them lead nowhere",
    )
    group.add_argument(
        "--blackhole",
        type=_checked(Blackhole.parse),
        metavar="LASTS@EVERY[:once][:request|:response]",
        help="30s@60s: 60 s after the start, and every 60 s from then on, nothing passes for 30 s, on both sides or "
        "one, and nothing is closed; what waited passes at the end",
    )
    group.add_argument(
        "--one-connection",
        action="store_true",
        help="while one client connection is open, others are reset",
    )


def _checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """For argparse, which shows the text of its own kind of error alone."""

    def checked(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked
