"""The command `tunnel-traces`, which turns trace files into tables, a report, or qlog."""

import argparse
import traceback
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from tunnel.analysis import result_cache
from tunnel.analysis.failures import JobError, NoTracesError, SetupError, failure_of
from tunnel.analysis.folders import Folder, LocalFolder, UnusableError, local_path
from tunnel.analysis.intake import compressed_bytes, intake_of_all
from tunnel.analysis.launch import running_spark
from tunnel.analysis.ledger import Ledger, LedgerError, open_ledger
from tunnel.analysis.result import Analysis
from tunnel.command_line import (
    LOG_LEVELS,
    CommandAdder,
    CommandParser,
    configure_log,
    exit_code_of,
    show,
    show_json,
    show_step,
    tell,
)
from tunnel.exit_codes import EXIT_CODES, INTERNAL, OK
from tunnel.printable import printable

__all__ = ["main"]

_WORK = "_tables"
_BRIEF_BYTES = 8_000_000  # about half a million events


class UsageError(Exception):
    """The command cannot work as it was called. The text says what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    options = _parser().parse_args(arguments)
    configure_log(options.log)
    known = (UsageError, LedgerError, NoTracesError, SetupError, UnusableError)
    return exit_code_of("tunnel-traces", lambda: _run(options), known, has_details=options.log == "debug")


def _parser() -> CommandParser:
    parser = CommandParser(
        prog="tunnel-traces",
        description="Explain what a tunnel did, from the traces that its commands write with --trace DIR.",
        epilog=f"{EXIT_CODES}. example: tunnel-traces report traces -o report.html",
    )
    parser.add_argument("--version", action="version", version=f"%(prog)s {metadata.version('tunnel-transport')}")
    parser.add_argument(
        "--log", choices=LOG_LEVELS, default="warning", help="log events of this level and above (default: warning)"
    )
    commands = CommandAdder(parser)
    report = commands.add(
        "report", "analyse the traces in DIR and write a report", "tunnel-traces report traces -o report.html"
    )
    _add_traces(report)
    report.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="the file to write (default: report.html)"
    )
    report.add_argument("--json", action="store_true", help="also print the results as JSON")
    compact = commands.add(
        "compact",
        "convert new trace files in DIR to the tables that 'tunnel-traces report' reads",
        "tunnel-traces compact traces",
    )
    _add_traces(compact)
    compact.add_argument("--json", action="store_true", help="print the state of each trace file as JSON")
    qlog = commands.add(
        "export-qlog",
        "write the traces in DIR as qlog, a format that tools for QUIC read; one file for each traced process",
        "tunnel-traces export-qlog traces -o qlogs",
    )
    qlog.add_argument("directory", metavar="DIR", help="the directory that --trace wrote to")
    qlog.add_argument(
        "-o", "--output", default="qlog", type=Path, metavar="DIR", help="the directory to write to (default: qlog)"
    )
    for parser_, run in ((report, _report), (compact, _compact), (qlog, _export)):
        parser_.set_defaults(run=run)
    return parser


def _add_traces(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "directory", metavar="DIR", help="the directory that --trace wrote to, or a URI that Hadoop knows (hdfs://...)"
    )
    parser.add_argument(
        "--tables",
        metavar="DIR",
        help="where report and compact keep the tables that they make from the traces, so that the next run reads only "
        f"new trace files (default: {_WORK} in the directory of the traces)",
    )
    parser.add_argument(
        "--master", default="", metavar="URL", help="the Spark master (default: all cores of this machine)"
    )
    parser.add_argument(
        "--memory", default="3g", metavar="SIZE", help="memory for Spark if it runs on this machine (default: 3g)"
    )


def _run(options: argparse.Namespace) -> int:
    traces = local_path(options.directory)
    if traces is not None and not traces.is_dir():
        raise UsageError(f"{options.directory} is not a directory: name the one that a command wrote to with --trace")
    try:
        return int(options.run(options))
    except JobError as error:
        if options.log == "debug":
            tell(traceback.format_exc().rstrip())
        tell(f"tunnel-traces: {error}")
        return INTERNAL


@dataclass(frozen=True, slots=True)
class _Opened:
    """Spark, and the folders of a command."""

    session: Any
    traces: Folder
    ledger: Ledger
    lock: ExitStack
    """Holds the lock on the tables. A command that no longer needs the lock closes this stack before its end."""


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[_Opened]:
    """Lock the tables and start Spark. Tables on this machine are locked first, because Spark takes seconds."""
    traces = local_path(options.directory)
    place = _tables(options)
    tables = local_path(place)
    brief = traces is not None and compressed_bytes(LocalFolder(traces)) < _BRIEF_BYTES
    with ExitStack() as lock:
        ledger = None if tables is None else lock.enter_context(open_ledger(LocalFolder(tables)))
        with _started(options, brief=brief) as session:
            found = _folder(session, options.directory)
            if ledger is None:
                ledger = lock.enter_context(open_ledger(_folder(session, place)))
            with lock:
                yield _Opened(session, found, ledger, lock)


def _tables(options: argparse.Namespace) -> str:
    return str(options.tables or f"{options.directory.rstrip('/')}/{_WORK}")


def _folder(session: Any, place: str) -> Folder:
    path = local_path(place)
    if path is not None:
        return LocalFolder(path)
    from tunnel.analysis.hadoop import HadoopFolder

    return HadoopFolder(session, place)


@contextmanager
def _started(options: argparse.Namespace, *, brief: bool) -> Iterator[Any]:
    """Yield a SparkSession, and stop it in the end."""
    show_step("starting Spark")
    try:
        with running_spark(options.master, options.memory, brief=brief, show_log=options.log == "debug") as session:
            yield session
    finally:
        show_step("")


def _report(options: argparse.Namespace) -> int:
    result = _stored(options) or _analysed(options)
    from tunnel.analysis.report import render

    output = Path(options.output)
    output.parent.mkdir(parents=True, exist_ok=True)
    output.write_text(render(result, f"Traces of {_name(options.directory)}"), encoding="utf-8")
    show_step("")
    if options.json:
        show_json(result, is_indented=True)
    else:
        from tunnel.analysis.verdict import verdict

        show("\n".join(map(printable, [*verdict(result), f"The report is in {output}."])))
    return OK


def _stored(options: argparse.Namespace) -> Analysis | None:
    """Return the result of the last report, if the traces and tables are on this machine and have not changed."""
    traces, tables = local_path(options.directory), local_path(_tables(options))
    if traces is None or tables is None:
        return None
    ledger = Ledger(LocalFolder(tables))
    intake = intake_of_all(LocalFolder(traces), ledger)
    return None if intake is None else result_cache.load(ledger, intake)


def _analysed(options: argparse.Namespace) -> Analysis:
    """Add new traces to the tables, and return the result of the analysis, which is stored for the next report."""
    with _opened(options) as opened:
        from tunnel.analysis.analyse import analyse
        from tunnel.analysis.ingest import compact, read_events

        intake = compact(opened.session, opened.traces, opened.ledger, show_step)
        opened.lock.close()  # no longer needed: no command changes the tables that the ledger names now
        found = result_cache.load(opened.ledger, intake)
        if found is not None:
            return found
        try:
            result = analyse(opened.session, read_events(opened.session, opened.ledger), intake, show_step)
            result = result_cache.as_loaded(result)
        except Exception as error:  # the classes differ between versions of Spark, and some are of Java
            raise failure_of(error, "no report was written") from error
        result_cache.store(opened.ledger, intake, result)
    return result


def _compact(options: argparse.Namespace) -> int:
    with _opened(options) as opened:
        from tunnel.analysis.ingest import compact

        intake = compact(opened.session, opened.traces, opened.ledger, show_step)
    show_step("")
    if options.json:
        show_json({"files": intake.files})
    else:
        for file in intake.problems:
            show(printable(f"{file.name}: {file.problem}{f' of {file.same_as}' if file.same_as else ''}"))
        show(f"{len(intake.files)} trace files were found, {len(intake.problems)} of them with problems.")
    return OK


def _export(options: argparse.Namespace) -> int:
    from tunnel.analysis.qlog import export

    directory = local_path(options.directory)
    if directory is None:
        raise UsageError(f"{options.directory} is not on this machine: copy the traces to a directory, and name that")
    written = export(directory, options.output)
    if not written:
        raise UsageError(f"no traces in {options.directory}: run a command with --trace {options.directory} first")
    show("\n".join(printable(str(path)) for path in written))
    return OK


def _name(place: str) -> str:
    """Return the name of a directory for the title of its report."""
    path = local_path(place)
    return place.rstrip("/") if path is None else path.resolve().name
