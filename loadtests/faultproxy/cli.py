"""The fault proxy's command line, and its translation into options."""

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args, get_type_hints

from loadtests.faultproxy.grammar import Fault
from loadtests.faultproxy.options import FaultProxyOptions, FrameFaults, Option

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
    given["statuses"] = tuple(given.get("statuses", ()))
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
    _add(parser, FaultProxyOptions)
    _add(parser.add_argument_group("faults of single frames of websockets"), FrameFaults, "frame-")
    group = parser.add_argument_group("records")
    place = f"write a record for each fault to this file, or to {TRACE_FILE} in this directory"
    group.add_argument("--trace", type=Path, default=None, metavar="DIR/FILE", help=place)
    group.add_argument("--json", action="store_true", default=False, help="print the counters as JSON at the end")
    return parser


def _add(group: argparse._ActionsContainer, options: type, prefix: str = "") -> None:
    """Add an argument for each option that a class declares."""
    for field, kind, option in _declared(options):
        flag = f"--{prefix}{(option.name or field).replace('_', '-')}"
        fault = option.fault or _fault_of(kind)
        told = option.help or " ".join((fault.__doc__ or "").split()) if fault else option.help
        more: dict[str, Any] = {"dest": f"{prefix}{field}".replace("-", "_"), "help": told}
        if kind is bool:
            group.add_argument(flag, action="store_true", **more)
            continue
        if option.fault is not None:
            more["action"] = "append"
        parse = option.parse if fault is None else fault.parse
        metavar = option.metavar if fault is None else fault.grammar()
        assert parse is not None, f"{flag} has no parser"
        known = parse if parse in (int, str) else _checked(parse)  # argparse words the errors of these
        group.add_argument(flag, type=known, metavar=metavar, required=field == "listen", **more)


def _declared(options: type) -> Iterator[tuple[str, Any, Option]]:
    """Yield the name, the type and the declaration of each field that is an option."""
    for name, hint in get_type_hints(options, include_extras=True).items():
        if hasattr(hint, "__metadata__"):
            yield name, hint.__origin__, hint.__metadata__[0]
        elif _fault_of(hint) is not None:
            yield name, hint, Option()


def _fault_of(kind: Any) -> type[Fault] | None:
    """Return the fault that a type is, perhaps beside None."""
    kinds = (kind, *get_args(kind))
    return next((one for one in kinds if isinstance(one, type) and issubclass(one, Fault)), None)


def _checked(parse: Callable[[str], _T]) -> Callable[[str], _T]:
    """Make `parse` raise ArgumentTypeError, the only kind of error whose text argparse shows."""

    def checked(text: str) -> _T:
        try:
            return parse(text)
        except ValueError as error:
            raise argparse.ArgumentTypeError(str(error)) from error

    return checked
