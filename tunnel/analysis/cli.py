"""The command `tunnel-traces`: from trace files to tables, a report, or qlog."""

import argparse
import sys
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec

from tunnel.command_line import LOG_LEVELS, CommandAdder, configure_log, exit_code_of
from tunnel.exit_codes import EXIT_CODES, OK

__all__ = ["main"]

_WORK = "_tables"
_BRIEF_BYTES = 8_000_000  # half a million events, more or less


class UsageError(Exception):
    """The command was not called in a way that can work; the text says what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command; its exit code."""
    options = _parser().parse_args(arguments)
    configure_log(options.log)
    return exit_code_of("tunnel-traces", lambda: _run(options), (UsageError,))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tunnel-traces",
        description="Explain what a tunnel did, from the traces that its commands write with --trace DIR.",
        epilog=f"{EXIT_CODES}. example: tunnel-traces report traces -o report.html",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {metadata.version('tunnel-transport')}")
    parser.add_argument("--log", choices=LOG_LEVELS, default="warning", help="what to log (default: warning)")
    commands = CommandAdder(parser)
    report = commands.add(
        "report", "analyse the traces in DIR and write a report", "tunnel-traces report traces -o report.html"
    )
    _add_traces(report)
    report.add_argument("-o", "--output", default="report.html", metavar="FILE", help="(default: report.html)")
    report.add_argument("--json", action="store_true", help="print the numbers as JSON, too")
    compact = commands.add("compact", "add what is new in DIR to its tables", "tunnel-traces compact traces")
    _add_traces(compact)
    compact.add_argument("--json", action="store_true", help="print what was found as JSON")
    qlog = commands.add(
        "export-qlog", "write what DIR has as qlog, a file for each node", "tunnel-traces export-qlog traces -o qlogs"
    )
    qlog.add_argument("directory", metavar="DIR", type=Path, help="where --trace wrote to")
    qlog.add_argument("-o", "--output", default="qlog", type=Path, metavar="DIR", help="(default: qlog)")
    for parser_, run in ((report, _report), (compact, _compact), (qlog, _export)):
        parser_.set_defaults(run=run)
    return parser


def _add_traces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("directory", metavar="DIR", type=Path, help="where --trace wrote to")
    parser.add_argument("--tables", type=Path, metavar="DIR", help=f"where the tables are (default: DIR/{_WORK})")
    parser.add_argument("--master", default="", metavar="URL", help="of Spark (default: all cores of this machine)")
    parser.add_argument("--memory", default="3g", metavar="SIZE", help="of a Spark on this machine (default: 3g)")


def _run(options: argparse.Namespace) -> int:
    if not options.directory.is_dir():
        raise UsageError(f"{options.directory} is no directory: name the one that a command wrote to with --trace")
    return int(options.run(options))


def _session(options: argparse.Namespace) -> Any:
    """A SparkSession; Spark is imported only by commands that need it."""
    if find_spec("pyspark") is None:
        raise UsageError("Spark is not installed: pip install 'tunnel-transport[analysis]', and a Java of 17 or later")
    from tunnel.analysis.intake import compressed_bytes
    from tunnel.analysis.session import make_session

    _progress("starting Spark")
    brief = compressed_bytes(options.directory) < _BRIEF_BYTES
    return make_session(options.master, memory=options.memory, brief=brief)


def _report(options: argparse.Namespace) -> int:
    session = _session(options)
    from tunnel.analysis.analyse import analyse
    from tunnel.analysis.ingest import NoTracesError, compact, read_events
    from tunnel.analysis.report import render

    tables = options.tables or options.directory / _WORK
    try:
        _progress("reading the traces")
        try:
            intake = compact(session, options.directory, tables)
        except NoTracesError as error:
            raise UsageError(str(error)) from error
        result = analyse(session, read_events(session, tables), intake, _progress)
    finally:
        session.stop()
    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render(result, f"Traces of {options.directory.resolve().name}"), encoding="utf-8")
    _progress("")
    if options.json:
        print(msgspec.json.format(msgspec.json.encode(result)).decode())
    else:
        from tunnel.analysis.verdict import verdict

        print("\n".join([*verdict(result), f"The report is in {output}."]))
    return OK


def _compact(options: argparse.Namespace) -> int:
    session = _session(options)
    from tunnel.analysis.ingest import NoTracesError, compact

    try:
        _progress("reading the traces")
        intake = compact(session, options.directory, options.tables or options.directory / _WORK)
    except NoTracesError as error:
        raise UsageError(str(error)) from error
    finally:
        session.stop()
    _progress("")
    if options.json:
        print(msgspec.json.encode(intake).decode())
    else:
        for file in intake.problems:
            print(f"{file.name}: {file.problem}{f' of {file.same_as}' if file.same_as else ''}")
        print(f"{len(intake.files)} files are in the tables, {len(intake.problems)} of them with something wrong.")
    return OK


def _export(options: argparse.Namespace) -> int:
    from tunnel.analysis.qlog import export

    written = export(options.directory, options.output)
    if not written:
        raise UsageError(f"no traces in {options.directory}: run a command with --trace {options.directory} first")
    print("\n".join(str(path) for path in written))
    return OK


def _progress(text: str) -> None:
    """What takes so long, for a person who looks."""
    if sys.stderr.isatty():
        print(f"\r\x1b[K{text}", end="", file=sys.stderr, flush=True)
