"""Runs all queries, in an order in which those that several others read come first; the result is a few plain rows."""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, ExitStack, contextmanager
from itertools import count

from tunnel.analysis.engines.engine import Engine, Rows
from tunnel.analysis.engines.queries import KEPT, needed, query
from tunnel.analysis.kept.derived import EVENTS_MIN, Basis, derived, latest
from tunnel.analysis.kept.ledger import Intake, Ledger
from tunnel.analysis.results import clocks, holes, result_cache, tables
from tunnel.analysis.results.limits import LIMITS, MAIN_SHARE
from tunnel.analysis.results.result import BUCKET_US, TRANSITIONS, Analysis
from tunnel.analysis.results.selection import Selection, select

__all__ = ["analyse", "begin", "streams_kept"]

DRAWN = 24  # streams that can be drawn
LISTED = 200  # streams among which readers choose
STALLS_LISTED = 30
MOVES_LISTED = 200
GRAPH_COLUMNS, GRAPH_ROWS = 480, 240  # of cells in a graph; a drawn point covers about one cell

STALL_MIN_US = 1_000
PATIENCE_US = 500_000  # allowed for the answer to a CONNECT while no round trip is known
ACK_DELAY_US = 25_000  # PROTOCOL 4.3: the longest time for which a receiver delays an acknowledgement
OPEN_US = 1_000_000  # a silence at the end of the trace is a stall if it is longer than this, and than the RTO

_PARAMETERS = {
    "steps": {"stall_min_us": STALL_MIN_US, "ack_delay_us": ACK_DELAY_US, "patience_us": PATIENCE_US},
    "silences": {"open_us": OPEN_US},
}
OF_STREAMS = ("flow", "packets", "troubled", "streams", "unread", "steps", "samples", "connects", "least_trips")
"""Queries of which each row belongs to one stream, and depends on the events of that stream alone."""
_VIEWS = frozenset(
    {"samples", "connects", "least_trips", "meanwhile", "lags"}
)  # each is read about once, or costs little

_ENOUGH = 100_000  # up to this number of events, all packets are compared; of more, a sample of about this number
_SHORT_BUCKETS_US = (100_000, 1_000_000)
_LONG_BUCKETS_US = (BUCKET_US, 60_000_000, 600_000_000, 3_600_000_000, 86_400_000_000)
_BUCKETS = 1_000  # largest number of time buckets, except for a trace of years

Progress = Callable[[str], None]


def analyse(
    engine: Engine,
    intake: Intake,
    progress: Progress = lambda text: None,
    ledger: Ledger | None = None,
    selection: Selection | None = None,
) -> Analysis:
    """Run every query over the events that the engine has opened, or over those of the selection.

    With a ledger, the tables of streams are stored beside its events, if there are many; see `derived`. Those of a
    selection never are.
    """
    progress("checking the trace files")
    ledger = ledger if selection is None else None
    stored = None if ledger is None else latest(ledger.folder)
    result, basis = _begun(engine, intake, {} if stored is None else stored[1].basis.writers, selection)
    progress("joining both ends of the streams")
    events = sum(row["events"] for row in result.files)
    is_derived = ledger is not None and events >= EVENTS_MIN
    with ThreadPoolExecutor(1) as beside, ExitStack() as kept:  # one query is planned while another one runs
        if selection is None:  # otherwise `select` has made a table of them
            kept.enter_context(engine.keep("attachments", query("attachments")))
        kept.enter_context(engine.keep("relays", query("relays")))
        counted = beside.submit(_counts, result, engine)
        if ledger is None or not is_derived:
            kept.enter_context(streams_kept(engine))
        else:
            of_streams = derived(engine, ledger, basis, events, lambda condition: _kept(engine, OF_STREAMS, condition))
            kept.enter_context(of_streams)
            kept.enter_context(_kept(engine, [name for name in KEPT if name not in OF_STREAMS]))
        _totals(result, engine)
        examined = beside.submit(_network, result, engine)
        progress("measuring round trips and stalls")
        _timing(result, engine)
        _stalls(result, engine)
        examined.result()
        progress("looking at single streams")
        _few_streams(result, engine, is_derived=is_derived)
        counted.result()
    return result


def begin(engine: Engine, intake: Intake, selection: Selection | None = None) -> Analysis:
    """Fill in what is known of the trace itself, and name the events: in the common time of all their writers."""
    return _begun(engine, intake, {}, selection)[0]


def _begun(
    engine: Engine, intake: Intake, before: dict[str, tuple[int, int]], selection: Selection | None
) -> tuple[Analysis, Basis]:
    """Do what `begin` says. Writers keep the numbers that they had before."""
    result = Analysis(engine=engine.name)
    engine.view("records", query("records"))
    _health(result, intake)
    known = _clocks(result, engine)
    result.deaths = tables.deaths(result.files, result.problems)
    names = sorted({row["writer"] for row in result.files})
    ids = {name: before[name][0] for name in names if name in before}
    unused = count(1 + max((number for number, _ in before.values()), default=0))
    ids |= {name: next(unused) for name in names if name not in ids}
    incomplete = {row["writer"] for row in result.writers if row["missing"]}
    rows: Rows = [
        {
            "writer": name,
            "writer_id": ids[name],
            "ahead_us": known[name].ahead_us if name in known else 0,
            "is_incomplete": name in incomplete,
        }
        for name in names
    ]
    engine.table("writers", "writer string, writer_id int, ahead_us bigint, is_incomplete boolean", rows)
    engine.view("events", query("events"))
    if selection is not None:
        select(selection, result, engine)
        _measure_span(result)
    slack = {"slack_us": holes.SLACK_US, "range_bits": holes.RANGE_BITS}
    inner = holes.merged(engine.rows(query("holes", **slack))) if incomplete else {}
    found = holes.by_writer(result.files, inner)
    spans: Rows = [
        {"writer_id": ids[row["writer"]], "until_us": row["until_us"], "holes": row["holes"]} for row in found
    ]
    columns = "writer_id int, until_us bigint, holes array<struct<begin_us: bigint, end_us: bigint>>"
    engine.table("spans", columns, spans)
    basis = Basis(
        code=f"{result_cache.digest_of_code()} {engine.name}",
        writers={row["writer"]: (row["writer_id"], row["ahead_us"]) for row in rows},
        spans={
            row["writer"]: (row["until_us"], [(hole["begin_us"], hole["end_us"]) for hole in row["holes"]])
            for row in found
        },
    )
    return result, basis


def streams_kept(engine: Engine, names: Iterable[str] = KEPT) -> AbstractContextManager[None]:
    """Keep the tables that most queries read while the context lasts: those of these names, and what they need."""
    return _kept(engine, needed(names))


@contextmanager
def _kept(engine: Engine, names: Iterable[str], condition: str = "true") -> Iterator[None]:
    """Keep tables, of the streams for which a condition holds."""
    with ExitStack() as kept:
        for name in names:
            if name == "flow":
                engine.view("events_part", f"select * from events where {condition}")
            text = query(name, **_PARAMETERS.get(name, {}))
            if name in _VIEWS:
                engine.view(name, text)
            else:
                kept.enter_context(engine.keep(name, text))
        yield


def _health(result: Analysis, intake: Intake) -> None:
    result.files = sorted((dict(row) for row in intake.found), key=lambda row: (row["file"], row["writer"]))
    result.writers = tables.writers(result.files)
    result.problems = [
        {
            "file": file.name,
            "problem": file.problem,
            "frames": file.frames,
            "corrupt_frames": file.corrupt_frames,
            "same_as": file.same_as,
        }
        for file in intake.problems
    ]
    for row in result.files:
        for name, problem in (("other_versions", "version"), ("bad_lines", "lines")):
            if row[name]:
                detail = {"count": row[name], "version": row["other_version"]}
                result.problems.append({"file": row["file"], "problem": problem, **detail})


def _clocks(result: Analysis, engine: Engine) -> dict[str, clocks.Clock]:
    """Compare the clocks of the writers, and move the times of the files to the common time."""
    walls = tables.walls(result.files)
    events = sum(row["events"] for row in result.files)
    one_of = 1 << (events // _ENOUGH).bit_length()  # the same packets as before, until there are twice as many
    delays = [] if clocks.are_one(walls) else engine.rows(query("delays", one_of=one_of))
    known = clocks.clocks_of(walls, delays)
    for row in result.files:
        ahead_us = known[row["writer"]].ahead_us if row["writer"] in known else 0
        if row["begin_us"] is not None:
            row["begin_us"], row["end_us"] = row["begin_us"] - ahead_us, row["end_us"] - ahead_us
    for row in result.writers:
        of = known[row["writer"]]
        row["ahead_us"], row["clock"] = of.ahead_us, of.known_by
    at_zero = [wall + known[name].ahead_us for name, wall in walls.items() if wall is not None]
    result.wall_us = at_zero[0] if at_zero else None
    _measure_span(result)
    return known


def _measure_span(result: Analysis) -> None:
    known = [row for row in result.files if row["begin_us"] is not None]
    result.begin_us = min((row["begin_us"] for row in known), default=0)
    result.end_us = max((row["end_us"] for row in known), default=0)
    span_us = result.end_us - result.begin_us
    short = (size for size in _SHORT_BUCKETS_US if span_us < 60 * size)
    long = (size for size in _LONG_BUCKETS_US if span_us < _BUCKETS * size)
    result.bucket_us = next(short, None) or next(long, _LONG_BUCKETS_US[-1])


def _counts(result: Analysis, engine: Engine) -> None:
    details = engine.rows(query("details"))
    result.refusals = engine.rows(query("refusals"))
    result.exchanges = tables.exchanges(details)
    result.absences = tables.absences(details)
    result.moves_by_cause = tables.moves_by_cause(details)
    if result.moves_by_cause:
        result.moves = engine.rows(query("moves", most=MOVES_LISTED))
    result.batches = tables.batches(details)
    result.timers = tables.timers(details)
    sums = engine.rows(query("sums", begin_us=result.begin_us, bucket_us=result.bucket_us))
    result.retransmissions = tables.retransmissions(sums)
    result.goodput = tables.goodput_over_time(sums)
    result.moved = tables.moved(sums)
    result.faults = tables.faults(sums)


def _totals(result: Analysis, engine: Engine) -> None:
    (totals,) = engine.rows(query("totals", main_share=MAIN_SHARE))
    result.gilbert = tables.fitted({name: totals.pop(name) for name in TRANSITIONS})
    result.limits = {name: totals.pop(name) for name in (*LIMITS, "granted_most")}
    (busy,) = engine.rows(query("busy", begin_us=result.begin_us, bucket_us=result.bucket_us))
    result.totals = totals | {"busy_us": busy["us"]}


def _network(result: Analysis, engine: Engine) -> None:
    totals = result.totals
    # Even an empty table costs a query, so skip those that are known to be empty.
    if totals["lost"] or (totals["attempts_max"] or 0) > 1:
        rows = engine.rows(query("network"))
        result.bursts, result.loss_stages = tables.bursts(rows), tables.loss_stages(rows)
        result.spurious, result.recovery = tables.spurious(rows), tables.recovery(rows)
    if totals["never_arrived"]:
        result.lost_ranges = engine.rows(query("lost_ranges"))


def _timing(result: Analysis, engine: Engine) -> None:
    times = engine.rows(query("trips", begin_us=result.begin_us, bucket_us=result.bucket_us))
    classes = [row for row in times if row["is_class"]]
    times = [row for row in times if not row["is_class"]]
    result.trips, result.receipts = (tables.trips_of_all(times, of) for of in ("trip", "receipt"))
    result.trips_over_time = tables.trips_over_time(times)
    result.trip_values = tables.trip_values(classes)
    most = result.totals["payload_most"] or 0
    with engine.keep("lives", query("lives", payload_most=most, main_share=MAIN_SHARE)):
        (result.life,) = engine.rows(query("life", trip_us=result.trips["us_min"] or 0))
        result.unread = engine.rows(query("unread_shares"))
        result.places = engine.rows(query("places"))


def _stalls(result: Analysis, engine: Engine) -> None:
    result.stalls = tables.without_few(engine.rows(query("stalls_by_cause")), "us_p99", "stalls")
    result.longest_stalls = engine.rows(query("longest_stalls", most=STALLS_LISTED))
    engine.view("receipts", query("receipts"))
    worst = tables.without_few(engine.rows(query("worst", most=LISTED)), "trip_us_p99", "trips")
    result.worst = tables.without_few(worst, "hol_us_p99", "received_packets")
    for row in result.worst:
        for name in ("receipts", "backoff_max"):  # 0 if the stream sent packets, None if its sender was not traced
            row[name] = row[name] or (0 if row["packets"] else None)


def _few_streams(result: Analysis, engine: Engine, *, is_derived: bool) -> None:
    """Add what is shown of single streams: nodes and carriers (all other tables have only numbers), and graphs."""
    chosen = sorted({row["stream"] for row in (*result.worst, *result.lost_ranges)})
    if not chosen:
        return
    with ExitStack() as kept:
        engine.table("chosen", "stream bigint", [{"stream": stream} for stream in chosen])
        if is_derived:
            kept.enter_context(_kept(engine, ["flow"], "stream in (select stream from chosen)"))
        found = {row.pop("stream"): row for row in engine.rows(query("names"))}
        for row in result.worst:
            row.update(found[row["stream"]])
            row["nodes"], row["relays"] = row["nodes"] or [], row["relays"] or []
        for row in result.lost_ranges:
            row["sender"] = found[row["stream"]]["sender"]
        drawn = [row["stream"] for row in result.worst[:DRAWN]]
        engine.table("chosen", "stream bigint", [{"stream": stream} for stream in drawn])
        result.points = {str(stream): [] for stream in drawn}
        for row in engine.rows(query("points", columns=GRAPH_COLUMNS, rows=GRAPH_ROWS)):
            result.points[str(row["stream"])].append(row)
