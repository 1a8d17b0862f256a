"""The command `tunnel-traces`, which turns trace files into tables, a report, or qlog."""

import argparse
import os
import re
import time
import traceback
import webbrowser
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from importlib import metadata
from pathlib import Path

from tunnel.analysis.bounds import FIGURES, Bound, bound_of, failures
from tunnel.analysis.engines.engine import DUCKDB, SPARK, Engine
from tunnel.analysis.engines.failures import JobError, NoTracesError, QueryError, SetupError
from tunnel.analysis.engines.folders import Folder, LocalFolder, UnusableError, local_path
from tunnel.analysis.engines.launch import engine_for, running
from tunnel.analysis.kept.intake import compressed_bytes, intake_of_all
from tunnel.analysis.kept.ledger import Ledger, LedgerError, open_ledger
from tunnel.analysis.results import result_cache
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.results.selection import Moment, Selection, moment_of
from tunnel.analysis.words import aligned
from tunnel.ground.exit_codes import EXCEEDED, EXIT_CODES, INTERNAL, OK
from tunnel.ground.printable import printable
from tunnel.process.command_line import (
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

__all__ = ["STEPS", "main"]

_WORK = "_tables"
STEPS = 6
"""The steps of a report that are shown: two to add what is new, and four to analyse it."""
_BRIEF_BYTES = 8_000_000  # about half a million events


class UsageError(Exception):
    """The command cannot work as it was called. The text says what to do."""


def main(arguments: list[str] | None = None) -> int:
    """Run a command, and return its exit code."""
    options = _parser().parse_args(arguments)
    configure_log(options.log)
    known = (UsageError, LedgerError, NoTracesError, QueryError, SetupError, UnusableError)
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
    _add_output(report)
    _add_selection(report)
    report.add_argument("--json", action="store_true", help="also print the results as JSON")
    report.add_argument(
        "--fail-if",
        type=_bound,
        action="append",
        default=[],
        metavar="BOUND",
        help="end with exit code 8 if this holds, as in 'loss > 1%%'; may be given several times. Figures: "
        + ", ".join(FIGURES),
    )
    _add_commands_for_people(commands)
    compact = commands.add(
        "compact",
        "convert new trace files in DIR to the tables that 'tunnel-traces report' reads",
        "tunnel-traces compact traces",
    )
    _add_traces(compact)
    compact.add_argument("--json", action="store_true", help="print the state of each trace file as JSON")
    sql = commands.add(
        "sql",
        "run a query over the traces in DIR, which can read nothing else: events, packets, streams, steps, stalls",
        "tunnel-traces sql traces 'select event, count(*) from events group by event'",
    )
    _add_traces(sql)
    sql.add_argument("query", metavar="QUERY", help="a query in the SQL of DuckDB; docs/ANALYSIS.md names the tables")
    sql.add_argument("--json", action="store_true", help="print the rows as JSON")
    qlog = commands.add(
        "export-qlog",
        "write the traces in DIR as qlog, a format that tools for QUIC read; one file for each traced process",
        "tunnel-traces export-qlog traces -o qlogs",
    )
    qlog.add_argument("directory", metavar="DIR", help="the directory that --trace wrote to")
    qlog.add_argument(
        "-o", "--output", default="qlog", type=Path, metavar="DIR", help="the directory to write to (default: qlog)"
    )
    optimise = commands.add(
        "optimise",
        "merge the small files of the tables, day by day, so that reports read fewer",
        "tunnel-traces optimise traces",
    )
    _add_traces(optimise)
    expire = commands.add(
        "expire", "remove old days from the tables; trace files stay", "tunnel-traces expire traces --keep 30"
    )
    _add_traces(expire)
    kept = expire.add_mutually_exclusive_group(required=True)
    kept.add_argument("--keep", type=_days, metavar="DAYS", help="remove all days but the last DAYS, in UTC")
    kept.add_argument("--before", type=_day, metavar="DATE", help="remove the days before DATE, as in 2026-11-01")
    for parser_, run in ((optimise, _optimise), (expire, _expire)):
        parser_.set_defaults(run=run)
    for parser_, run in ((report, _report), (compact, _compact), (sql, _sql), (qlog, _export)):
        parser_.set_defaults(run=run)
    return parser


def _add_commands_for_people(commands: CommandAdder) -> None:
    opened = commands.add(
        "open", "write a report of the traces in DIR, and show it in a browser", "tunnel-traces open traces"
    )
    _add_traces(opened)
    _add_output(opened)
    _add_selection(opened)
    opened.set_defaults(run=_open, json=False, fail_if=[])
    one = commands.add(
        "connection",
        "say what happened to one connection in the traces in DIR",
        "tunnel-traces connection traces 5fc0a2b1",
    )
    _add_traces(one)
    one.add_argument("connection", type=_connection, metavar="ID", help="its id at one end, as reports show it")
    one.add_argument("--json", action="store_true", help="print the results as JSON")
    one.set_defaults(run=_connection_command, since=None, until=None, relay="")
    compare = commands.add(
        "compare",
        "say what changed between the traces in two directories, and how sure that is",
        "tunnel-traces compare before after",
    )
    _add_traces(compare)
    compare.add_argument("other", metavar="OTHER", help="the directory of the traces to compare with")
    compare.add_argument("--json", action="store_true", help="print the changes as JSON")
    compare.set_defaults(run=_compare)


def _add_output(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "-o", "--output", default="report.html", metavar="FILE", help="the file to write (default: report.html)"
    )


def _add_selection(parser: argparse.ArgumentParser) -> None:
    since = "90s or 5min since the trace began, or a time in UTC, as in 2026-11-01T10:00"
    parser.add_argument(
        "--from", dest="since", type=_moment, metavar="TIME", help=f"leave out what was before: {since}"
    )
    parser.add_argument("--to", dest="until", type=_moment, metavar="TIME", help="leave out what came after")
    parser.add_argument(
        "--relay", default="", metavar="URL", help="only connections over this relay, as reports name it"
    )
    parser.add_argument(
        "--connection", type=_connection, default=0, metavar="ID", help="only this connection, by its id at one end"
    )


def _moment(text: str) -> Moment:
    try:
        return moment_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _connection(text: str) -> int:
    try:
        number = int(text, 16)
    except ValueError:
        number = 0
    if not 0 < number < 1 << 32:
        raise argparse.ArgumentTypeError(f"{text!r} is no connection: give its id as reports show it, as in 5fc0a2b1")
    return number


def _selection(options: argparse.Namespace) -> Selection | None:
    """Return what the options select; None for the whole trace."""
    given = {name: value for name in Selection._fields if (value := getattr(options, name, None))}
    chosen = Selection(**given)
    return chosen if chosen != Selection() else None


def _bound(text: str) -> Bound:
    try:
        return bound_of(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _days(text: str) -> str:
    """Return the first of the last `text` days."""
    if not re.fullmatch(r"[1-9]\d{0,4}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number of days from 1 to 99999")
    return (datetime.now(UTC) - timedelta(days=int(text) - 1)).strftime("%Y-%m-%d")


def _day(text: str) -> str:
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).strftime("%Y-%m-%d")
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no day: write it as in 2026-11-01") from None


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
        "--engine",
        choices=(DUCKDB, SPARK),
        default="",
        help="what computes the report (default: duckdb, within this process; spark for --master, for URIs, and for "
        "more than 200 MB of compressed traces)",
    )
    parser.add_argument(
        "--master", default="", metavar="URL", help="the Spark master (default: all cores of this machine)"
    )
    parser.add_argument(
        "--memory", default="3g", metavar="SIZE", help="memory for the engine on this machine (default: 3g)"
    )


def _run(options: argparse.Namespace) -> int:
    traces = local_path(options.directory)
    if traces is not None and not traces.is_dir():
        query = getattr(options, "query", "")
        guess = f"; write DIR before QUERY, as in tunnel-traces sql {query} ..." if os.path.isdir(query) else ""
        raise UsageError(
            f"{options.directory} is not a directory: name the one that a command wrote to with --trace{guess}"
        )
    try:
        return int(options.run(options))
    except JobError as error:
        if options.log == "debug":
            tell(traceback.format_exc().rstrip())
        tell(f"tunnel-traces: {error}")
        return INTERNAL


@dataclass(frozen=True, slots=True)
class _Opened:
    """The engine, and the folders of a command."""

    engine: Engine
    traces: Folder
    ledger: Ledger
    lock: ExitStack
    """Holds the lock on the tables. A command that no longer needs the lock closes this stack before its end."""


@contextmanager
def _opened(options: argparse.Namespace) -> Iterator[_Opened]:
    """Lock the tables and start the engine. Tables on this machine are locked first, because Spark takes seconds."""
    with _changed(options) as opened, opened.ledger.folder.reading():  # data that is read is not removed
        yield opened


@contextmanager
def _changed(options: argparse.Namespace) -> Iterator[_Opened]:
    """Do the same for a command that removes data, and so does not read beside itself."""
    place = _tables(options)
    tables = local_path(place)
    with ExitStack() as lock:
        ledger = None if tables is None else lock.enter_context(open_ledger(LocalFolder(tables)))
        with _started(options) as engine:
            found = engine.folder(options.directory)
            if ledger is None:
                ledger = lock.enter_context(open_ledger(engine.folder(place)))
            with lock:
                yield _Opened(engine, found, ledger, lock)


def _tables(options: argparse.Namespace) -> str:
    return str(options.tables or f"{options.directory.rstrip('/')}/{_WORK}")


def _traces_bytes(options: argparse.Namespace) -> int:
    traces = local_path(options.directory)
    return 0 if traces is None else compressed_bytes(LocalFolder(traces))


def _engine(options: argparse.Namespace) -> str:
    return engine_for(options.engine, options.master, [options.directory, _tables(options)], _traces_bytes(options))


@contextmanager
def _started(options: argparse.Namespace) -> Iterator[Engine]:
    """Yield the engine, and stop it in the end."""
    name = _engine(options)
    brief = local_path(options.directory) is not None and _traces_bytes(options) < _BRIEF_BYTES
    show_step("starting Spark" if name == SPARK else "opening DuckDB")
    try:
        with running(name, options.master, options.memory, brief=brief, show_log=options.log == "debug") as engine:
            yield engine
    finally:
        show_step("")


def _report(options: argparse.Namespace) -> int:
    output = Path(options.output)
    if output.is_dir():
        raise UsageError(f"{output} is a directory: name the file for the page, as in -o report.html")
    result = _stored(options) or _analysed(options)
    from tunnel.analysis.page.report import render

    show_step("writing the page")
    output.parent.mkdir(parents=True, exist_ok=True)
    selection = _selection(options)
    part = f" ({selection.text()})" if selection else ""
    output.write_text(render(result, f"Traces: {_name(options.directory)}{part}"), encoding="utf-8")
    show_step("")
    if options.json:
        show_json(result, is_indented=True)
    else:
        from tunnel.analysis.verdicts.verdict import verdict

        show("\n".join(map(printable, [*verdict(result), f"The report is in {output}."])))
    exceeded = failures(result, options.fail_if)
    for sentence in exceeded:
        tell(f"tunnel-traces: {sentence}")
    return EXCEEDED if exceeded else OK


def _open(options: argparse.Namespace) -> int:
    code = _report(options)
    page = Path(options.output).resolve()
    if not webbrowser.open(page.as_uri()):
        raise UsageError(f"no browser could be started: open {page} in one")
    return code


def _connection_command(options: argparse.Namespace) -> int:
    result = _analysed(options)
    show_step("")
    if options.json:
        show_json(result, is_indented=True)
        return OK
    from tunnel.analysis.answers.one_connection import lines_of

    show("\n".join(map(printable, lines_of(result))))
    return OK


def _compare(options: argparse.Namespace) -> int:
    if options.tables:
        raise UsageError("compare reads two directories, and --tables names only one: leave it out")
    from tunnel.analysis.answers.compare import changes, sentence_of

    results = []
    for directory in (options.directory, options.other):
        path = local_path(directory)
        if path is not None and not path.is_dir():
            raise UsageError(f"{directory} is not a directory: name one that a command wrote to with --trace")
        one = argparse.Namespace(**{**vars(options), "directory": directory})
        results.append(_stored(one) or _analysed(one))
    show_step("")
    before, after = results
    rows = changes(before, after)
    if options.json:
        show_json({"changes": [row._asdict() for row in rows], "summary": sentence_of(before, after)})
        return OK
    ways = {True: "more", False: "less", None: ""}
    table = [(row.name, row.before, row.after, ways[row.is_more], row.confidence) for row in rows]
    columns = ("figure", _name(options.directory), _name(options.other), "", "confidence")
    show("\n".join(map(printable, [sentence_of(before, after), "", *aligned(columns, table)])))
    return OK


def _stored(options: argparse.Namespace) -> Analysis | None:
    """Return the result of the last report, if the traces and tables are on this machine and have not changed."""
    traces, tables = local_path(options.directory), local_path(_tables(options))
    if traces is None or tables is None or _selection(options):
        return None
    ledger = Ledger(LocalFolder(tables))
    intake = intake_of_all(LocalFolder(traces), ledger)
    return None if intake is None else result_cache.load(ledger, intake, _engine(options))


def _analysed(options: argparse.Namespace) -> Analysis:
    """Add new traces to the tables, and return the result of the analysis, which is stored for the next report."""
    with _opened(options) as opened:
        from tunnel.analysis.kept.ingest import compact
        from tunnel.analysis.results.analyse import analyse

        engine, name, selection = opened.engine, _engine(options), _selection(options)
        progress = _Progress()
        intake = compact(engine, opened.traces, opened.ledger, progress)
        opened.lock.close()  # no longer needed: no command changes the tables that the ledger names now
        found = None if selection else result_cache.load(opened.ledger, intake, name)
        if found is not None:
            return found
        try:
            engine.read(opened.ledger.folder, opened.ledger.data())
            result = result_cache.as_loaded(analyse(engine, intake, progress, opened.ledger, selection))
        except (LedgerError, QueryError):
            raise
        except Exception as error:  # the classes differ between versions of the engines, and some are of Java
            raise engine.failure_of(error, "no report was written") from error
        if selection is None:
            result_cache.store(opened.ledger, intake, name, result)
    return result


class _Progress:
    """Says at a terminal what is being done, and how long the work has taken so far."""

    def __init__(self) -> None:
        self._began_s = time.monotonic()
        self._steps = 0

    def __call__(self, text: str) -> None:
        self._steps += 1
        show_step(f"step {self._steps} of at most {STEPS}: {text} ({time.monotonic() - self._began_s:.0f} s so far)")


def _compact(options: argparse.Namespace) -> int:
    with _opened(options) as opened:
        from tunnel.analysis.kept.ingest import compact

        intake = compact(opened.engine, opened.traces, opened.ledger, show_step)
    show_step("")
    if options.json:
        show_json({"files": intake.files})
    else:
        for file in intake.problems:
            show(printable(f"{file.name}: {file.problem}{f' of {file.same_as}' if file.same_as else ''}"))
        show(f"{len(intake.files)} trace files were found, {len(intake.problems)} of them with problems.")
    return OK


def _sql(options: argparse.Namespace) -> int:
    if _engine(options) != DUCKDB:
        raise UsageError("sql runs on DuckDB, on traces of this machine: leave out --master, or add --engine duckdb")
    with _opened(options) as opened:
        from tunnel.analysis.engines.duck import DuckEngine
        from tunnel.analysis.engines.queries import TABLES
        from tunnel.analysis.kept.ingest import compact
        from tunnel.analysis.results.analyse import begin, streams_kept

        engine = opened.engine
        assert isinstance(engine, DuckEngine)
        intake = compact(engine, opened.traces, opened.ledger, show_step)
        opened.lock.close()
        with ExitStack() as kept:
            try:
                engine.read(opened.ledger.folder, opened.ledger.data())
                begin(engine, intake)
                tables = set(TABLES).intersection(re.findall(r"\w+", options.query.lower()))
                kept.enter_context(streams_kept(engine, tables))
                engine.shut(with_events="events" in tables)
            except LedgerError:
                raise
            except Exception as error:  # the classes differ between versions of DuckDB
                raise engine.failure_of(error, "no query was run") from error
            columns, rows = engine.select(options.query)
    show_step("")
    if options.json:
        show_json([dict(zip(columns, row, strict=True)) for row in rows])
    else:
        show("\n".join(map(printable, aligned(columns, rows))))
    return OK


def _optimise(options: argparse.Namespace) -> int:
    with _changed(options) as opened:
        from tunnel.analysis.kept.upkeep import optimise

        show_step("merging the tables")
        changed = optimise(opened.engine, opened.ledger)
    show_step("")
    if changed.days:
        show(f"{changed.before} folders of the tables became {changed.after}; days that changed: {changed.days}.")
    else:
        show("Nothing to merge: no day has several small folders.")
    return OK


def _expire(options: argparse.Namespace) -> int:
    first = options.keep or options.before
    with _changed(options) as opened:
        from tunnel.analysis.kept.upkeep import expire

        changed = expire(opened.ledger, first)
    show_step("")
    show(f"Days before {first} that left the tables: {changed.days}; folders that remain: {changed.after}.")
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
