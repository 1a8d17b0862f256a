"""The fault proxy's command line, and its translation into options."""

import argparse
import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from loadtests.faultproxy.frame_options import (
    FrameBuffer,
    FrameClose,
    FrameCut,
    FrameFaults,
    FrameFlip,
    FrameStall,
)
from loadtests.faultproxy.grammar import parse_address, parse_count, parse_probability, parse_size_bytes
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
Probabilities range from 0 to 1. Durations need a unit (50ms, 1.5s, 2min); for sizes it is optional (64KiB, 1MiB).
Words after a colon are optional. The same seed and the same order of exchanges give the same faults.

At most one of these faults is applied to an exchange, and the first in this list wins: --status and --html,
--drop-request, --status and --html with :after, --drop-response. All other faults are applied in addition. In tunnels
(CONNECT and Upgrade), --delay, --truncate, --flip, --idle-cut and --blackhole work as they do on bodies.

The --frame options hit single frames of websockets that an Upgrade through this proxy has opened: P is the probability
for each frame. At most one of them hits a frame: --frame-close first, then -cut, -stall, -flip and -buffer.

example: a very bad network in front of a relay on port 8080
  python -m loadtests.faultproxy --listen 127.0.0.1:3128 --upstream http://127.0.0.1:8080 --seed 7 \\
    --drop-request 0.05 --drop-response 0.05:silent --duplicate 0.02 --late-duplicate 0.01:60s --delay 50ms±20ms \\
    --truncate 0.01 --flip 0.01:bits=8 --status 503:0.02:retry=1s --html 0.01 --limit 1MiB --idle-cut 20s \\
    --blackhole 30s@60s --trace traces/ --json

exit codes: 0 ended by SIGINT or SIGTERM; 2 wrong usage, or the address or the trace file cannot be used
"""

_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True)
class Arguments:
    """The parsed command line."""

    options: FaultProxyOptions
    trace: Path | None
    json: bool


def parse_arguments(arguments: Sequence[str]) -> Arguments:
    """Parse the command line. On an error, print what was expected and exit with code 2."""
    given = vars(_parser().parse_args(arguments))
    trace, json = given.pop("trace"), given.pop("json")
    given["statuses"] = tuple(given.pop("status"))
    names = [name for name in given if name.startswith("frame_")]
    given["frames"] = FrameFaults(**{name.removeprefix("frame_"): given.pop(name) for name in names})
    return Arguments(FaultProxyOptions(**given), trace, json)


def trace_path(trace: Path) -> Path:
    """Return the trace file to write: `trace` itself, or `TRACE_FILE` in it if it is a directory. A path without a
    suffix is taken for a directory, and created."""
    if trace.is_dir() or not trace.suffix:
        trace.mkdir(parents=True, exist_ok=True)
        return trace / TRACE_FILE
    return trace


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.faultproxy",
        description="An HTTP/1.1 proxy, reverse and forward, that damages exchanges on purpose.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
        argument_default=argparse.SUPPRESS,
    )
    _add_places(parser)
    _add_faults(parser)
    _add_frame_faults(parser)
    _add_behaviour(parser)
    return parser


def _add_places(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("addresses and records")
    group.add_argument(
        "--listen",
        type=_checked(parse_address),
        required=True,
        metavar="HOST:PORT",
        help="address to listen on; port 0 picks a free port. Every client that can reach it may use the forward proxy",
    )
    group.add_argument(
        "--upstream",
        type=_checked(parse_upstream),
        metavar="URL",
        help="server for requests that name only a path; CONNECT and absolute URLs go to the host that they name",
    )
    group.add_argument("--seed", type=int, metavar="N", help="seed of all random faults; default 0")
    group.add_argument("--node", metavar="NAME", help="the name of this proxy in traces; default faultproxy")
    group.add_argument(
        "--trace",
        type=Path,
        default=None,
        metavar="DIR/FILE",
        help=f"write a record for each fault to this file, or to {TRACE_FILE} in this directory",
    )
    group.add_argument("--json", action="store_true", default=False, help="print the counters as JSON at the end")


def _add_faults(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("random faults")
    drop = _checked(Drop.parse)
    group.add_argument(
        "--drop-request",
        type=drop,
        metavar="P[:silent]",
        help="drop the request before it reaches upstream, and close the client's connection, or (silent) leave it "
        "open without an answer",
    )
    group.add_argument(
        "--drop-response",
        type=drop,
        metavar="P[:silent]",
        help="drop the answer after upstream has sent it; close the client's connection or (silent) leave it open",
    )
    group.add_argument(
        "--duplicate", type=_checked(parse_probability), metavar="P", help="send the request upstream twice, at once"
    )
    group.add_argument(
        "--late-duplicate",
        type=_checked(LateDuplicate.parse),
        metavar="P:DURATION",
        help="send the request upstream again, this much later",
    )
    group.add_argument(
        "--delay",
        type=_checked(Delay.parse),
        metavar="D[±J]",
        help="delay every request and every answer by D, plus or minus up to J (+- works, too); tunnels and chunked "
        "bodies keep flowing, with that delay",
    )
    group.add_argument(
        "--truncate",
        type=_checked(Truncate.parse),
        metavar="P[:request|:response][:short|:cut]",
        help="end bodies early: with a matching Content-Length (short), by breaking the connection (cut), or with a "
        "random choice of the two",
    )
    group.add_argument(
        "--flip",
        type=_checked(Flip.parse),
        metavar="P[:request|:response][:bits=N]",
        help="flip from one to N bits of a body; N is 1 unless given, and at most 64",
    )
    group.add_argument(
        "--status",
        type=_checked(Status.parse),
        action="append",
        default=[],
        metavar="CODE:P[:after][:retry=DURATION]",
        help="answer with this status instead of asking upstream, or (after) instead of upstream's answer; may be "
        "repeated",
    )
    group.add_argument(
        "--html",
        type=_checked(Html.parse),
        metavar="P[:after]",
        help="like --status 200, with a login page as the body",
    )


def _add_frame_faults(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("faults of single frames of websockets")
    group.add_argument(
        "--frame-close",
        type=_checked(FrameClose.parse),
        metavar="P[:request|:response][:code=N]",
        help="send a close frame in place of a frame, then close both connections; N is 1001 unless given",
    )
    group.add_argument(
        "--frame-cut",
        type=_checked(FrameCut.parse),
        metavar="P[:request|:response]",
        help="close both connections inside a frame",
    )
    group.add_argument(
        "--frame-stall",
        type=_checked(FrameStall.parse),
        metavar="P[:request|:response][:for=DURATION]",
        help="from the middle of a frame on, pass nothing in this direction, for this time or (without it) for ever",
    )
    group.add_argument(
        "--frame-flip",
        type=_checked(FrameFlip.parse),
        metavar="P[:request|:response]",
        help="flip one bit of a frame, in its header or in its data",
    )
    group.add_argument(
        "--frame-buffer",
        type=_checked(FrameBuffer.parse),
        metavar="P:DURATION[:request|:response]",
        help="hold back a frame and all that follow it for this time, then pass them on at once",
    )


def _add_behaviour(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("behaviour of the proxy")
    group.add_argument(
        "--limit",
        dest="limit_bytes",
        type=_checked(parse_size_bytes),
        metavar="SIZE",
        help="answer larger request bodies with 413",
    )
    group.add_argument("--buffer", action="store_true", help="collect whole bodies, both ways, before forwarding them")
    group.add_argument("--no-upgrade", action="store_true", help="remove Upgrade from requests")
    group.add_argument(
        "--idle-cut",
        type=_checked(IdleCut.parse),
        metavar="DURATION[:silent]",
        help="reset client connections on which no byte has moved for this long; silent: leave them open, but discard "
        "everything",
    )
    group.add_argument(
        "--blackhole",
        type=_checked(Blackhole.parse),
        metavar="LASTS@EVERY[:once][:request|:response]",
        help="pass no bytes on for a time, in both directions or one, without closing connections; bytes that waited "
        "pass afterwards. 30s@60s: for 30 s, first 60 s after the start and then every 60 s",
    )
    group.add_argument(
        "--slots",
        type=_checked(parse_count),
        metavar="N",
        help="carry N requests at once, those of tunnels included; the others wait for their turn",
    )
    group.add_argument(
        "--one-connection",
        action="store_true",
        help="while one client connection is open, reset all others",
    )


def _checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Make `parse` raise ArgumentTypeError, the only kind of error whose text argparse shows."""

    def checked(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked
