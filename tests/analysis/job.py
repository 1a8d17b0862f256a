"""The Spark work of most tests, in one process of its own: a session costs more than the work itself.

`python -m tests.analysis.job DIRECTORY` writes its results there, as JSON. Spark is set up for tiny data: without
generated code, which takes longer to compile than it saves.
"""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession

from tests.analysis.damage import damaged_directory
from tests.analysis.diagnosed import Diagnosed, diagnose
from tests.analysis.drawn import Drawn, draw
from tests.analysis.ends import ENDS, stream_of, write_ends
from tests.analysis.exactly_once import Attempts, attempt
from tests.analysis.plans import Query, queries_of
from tests.analysis.proxied import talk_through_faults
from tests.analysis.settings import SETTINGS
from tests.analysis.stalls import write_silences
from tests.analysis.truth import simulate
from tunnel.analysis import counts, flow, hole_queries, holes, network, stalls, tables, timing
from tunnel.analysis.analyse import analyse
from tunnel.analysis.folders import LocalFolder
from tunnel.analysis.ingest import compact, read_events
from tunnel.analysis.ledger import Intake, Ledger, open_ledger
from tunnel.analysis.report import render
from tunnel.analysis.result import Analysis
from tunnel.analysis.session import make_session

__all__ = ["Found", "main", "stalls_in"]

ALONE = next(stream_of(ends) for ends in ENDS if ends.name == "sender alone, with repeats")


class Found(msgspec.Struct):
    """The faults that were injected, and the results of the analysis."""

    truth: Analysis
    injected: list[tuple[int, int]]
    injected_again: int
    """Repeats that were lost on purpose."""
    strikes: dict[str, int]
    lost: list[tuple[int, int]]
    """Packets whose first attempt was lost, according to Spark."""
    streams: list[dict[str, Any]]
    stalls: list[tuple[int, str]]
    """Stream and cause of each stall in the trace that `write_silences` wrote."""
    damaged: Analysis
    expected: dict[str, str]
    rows_first: int
    rows_again: int
    """The number of rows after another run without a new file."""
    rows_more: int
    """The number of rows after one more file."""
    proxied: dict[str, int]
    """The faults that the fault proxy reports."""
    proxied_faults: list[dict[str, Any]]
    proxied_exchanges: list[dict[str, Any]]
    python: str
    """The Python that Spark would start on its executors."""
    attempts: Attempts
    ends: list[dict[str, Any]]
    """The streams of ends.ENDS, and those of a run over a path of 300 ms, there and back."""
    ends_stalls: list[tuple[int, str]]
    queries: list[Query]
    """The queries with which Spark computed `truth`."""
    drawn: Drawn
    alone: Analysis
    """The analysis of a sender's trace, without the trace of the other end."""
    diagnosed: Diagnosed
    """The analyses of transfers between real processes, each with one trouble."""


def stalls_in(events: DataFrame) -> list[tuple[int, str]]:
    """Stream and cause of every stall."""
    return measured(events)[1]


def measured(events: DataFrame) -> tuple[list[dict[str, Any]], list[tuple[int, str]]]:
    """The figures of every stream, and stream and cause of every stall."""
    files = [row.asDict() for row in counts.file_health(events).collect()]
    incomplete = [row["writer"] for row in tables.writers(files) if row["missing"]]
    inner = [row.asDict() for row in hole_queries.holes_of(events, incomplete).collect()]
    missing = hole_queries.table_of(events.sparkSession, holes.by_writer(files, holes.merged(inner)))
    table = flow.flow_of(events).cache()
    packets = network.in_order(flow.packets_of(table, missing)).cache()
    streams = network.stream_table(packets).cache()
    steps = timing.steps_of(table, streams).cache()
    rows = streams.join(timing.receipts_by_stream(steps), "stream", "left").collect()
    found = stalls.stalls_of(steps, table, packets, streams, events, missing).select("stream", "why").collect()
    for each in (table, packets, streams, steps):
        each.unpersist()
    return [row.asDict() for row in rows], [(row["stream"], row["why"]) for row in found]


def ingest(session: SparkSession, directory: Path, work: Path) -> tuple[Intake, DataFrame]:
    """Add what is new; return the findings and the events."""
    with open_ledger(LocalFolder(work)) as ledger:
        intake = compact(session, LocalFolder(directory), ledger)
    return intake, read_events(session, Ledger(LocalFolder(work)))


def main(directory: Path) -> None:
    """Run the whole job."""
    cases = directory / "cases"
    subprocess.run([sys.executable, "-m", "loadtests.diagnosis", str(cases)], stdout=subprocess.DEVNULL, check=True)
    run = simulate(directory / "truth", streams=12, bytes_each=600_000)
    expected = damaged_directory(directory / "damaged")
    proxied = talk_through_faults(directory / "proxied")
    write_silences(directory / "proxied")
    session = make_session("local[1]", memory="1g", settings=SETTINGS)
    intake, events = ingest(session, directory / "truth", directory / "truth" / "_tables")
    session.conf.set("spark.sql.shuffle.partitions", "2")  # one partition needs no shuffle, and plans would show none
    before = len(queries_of(session))
    truth = analyse(session, events, intake)
    queries = queries_of(session)[before:]
    session.conf.set("spark.sql.shuffle.partitions", "1")
    ordered = network.in_order(flow.packets_of(flow.flow_of(events))).cache()
    lost = ordered.where("lost_first = 1").select("stream", "sequence").collect()
    streams = [row.asDict() for row in network.stream_table(ordered).collect()]
    work = directory / "damaged_tables"
    intake, damaged_events = ingest(session, directory / "damaged", work)
    rows_first = damaged_events.count()
    damaged = analyse(session, damaged_events, intake)
    rows_again = ingest(session, directory / "damaged", work)[1].count()
    more = directory / "damaged" / "more.jsonl"
    more.write_text('{"version":1,"time_us":1,"node":"a","event":"loop_lag","writer":"more","number":1}\n')
    rows_more = ingest(session, directory / "damaged", work)[1].count()
    _, events = ingest(session, directory / "proxied", directory / "proxied" / "_tables")
    proxied_faults = tables.faults([row.asDict() for row in counts.sums_of(events, None, 0).collect()])
    of_client = counts.details_of(events.where("node like 'faulty-%'"))
    silences = stalls_in(events.where("node rlike '^(sender|receiver|relay|other relay)-'"))
    proxied_exchanges = tables.exchanges([row.asDict() for row in of_client.collect()])
    attempts = attempt(session, directory / "attempts")
    write_ends(directory / "ends")
    simulate(directory / "ends", streams=1, bytes_each=400_000, delay_us=150_000, resets=0.0)
    intake, events = ingest(session, directory / "ends", directory / "ends" / "_tables")
    ends, ends_stalls = measured(events)
    drawn = draw(events)
    alone = analyse(session, events.where(f"node = 'sender-{ALONE}'"), intake)
    diagnosed = diagnose(session, cases)
    session.stop()
    (directory / "report.html").write_text(render(truth, "truth"))
    (directory / "alone.html").write_text(render(alone, "alone"))
    (directory / "damaged.html").write_text(render(damaged, "damaged"))
    found = Found(
        truth=truth,
        injected=run.gilbert.lost,
        injected_again=len(run.gilbert.repeats_lost),
        strikes=run.strikes,
        lost=[(row["stream"], row["sequence"]) for row in lost],
        streams=streams,
        stalls=silences,
        damaged=damaged,
        expected=expected,
        rows_first=rows_first,
        rows_again=rows_again,
        rows_more=rows_more,
        proxied=proxied,
        proxied_faults=proxied_faults,
        proxied_exchanges=proxied_exchanges,
        python=os.environ["PYSPARK_PYTHON"],
        attempts=attempts,
        ends=ends,
        ends_stalls=ends_stalls,
        queries=queries,
        drawn=drawn,
        alone=alone,
        diagnosed=diagnosed,
    )
    (directory / "found.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
