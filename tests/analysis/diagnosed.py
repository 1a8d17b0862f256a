"""The cases of loadtests.diagnosis, played by real processes: one report over all of them, and a verdict on each.

`python -m tests.analysis.diagnosed DIRECTORY` plays them if they have not been played, and prints the verdicts.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from loadtests.diagnosis.cases import CASES, INVENTED
from loadtests.diagnosis.play import folder_of, play
from tests.analysis.settings import SETTINGS
from tunnel.analysis import counts, flow, hole_queries, holes, limits, network, stalls, tables, timing
from tunnel.analysis.analyse import analyse
from tunnel.analysis.blame import blames
from tunnel.analysis.expressions import percentiles
from tunnel.analysis.folders import LocalFolder
from tunnel.analysis.ingest import compact, read_events
from tunnel.analysis.ledger import Ledger, open_ledger
from tunnel.analysis.result import Analysis
from tunnel.analysis.session import make_session
from tunnel.analysis.verdict import verdict

__all__ = ["Diagnosed", "diagnose", "gathered"]

Rows = list[dict[str, Any]]


class Diagnosed(msgspec.Struct):
    """One analysis of all cases together, and one of each case, from which its verdict is made."""

    whole: Analysis
    cases: dict[str, Analysis]


def gathered(directory: Path) -> Path:
    """Put the traces of all cases into one directory, as those of one run; return it."""
    together = directory / "all"
    if not together.is_dir():
        together.mkdir()
        for path in sorted(directory.glob("*/*.zst")):
            if path.parent != together:
                os.link(path, together / path.name)
    return together


def diagnose(session: SparkSession, directory: Path) -> Diagnosed:
    """Analyse the traces of all cases: once as a whole, and once by case, with one set of queries for all cases."""
    together = gathered(directory)
    work = directory / "tables"
    with open_ledger(LocalFolder(work)) as ledger:
        intake = compact(session, LocalFolder(together), ledger)
    events = read_events(session, Ledger(LocalFolder(work))).persist()
    whole = analyse(session, events, intake)
    writers = [
        {"case": case.name, "writer": path.name.removeprefix("_").rsplit("-", 1)[0]}
        for case in (*CASES, *INVENTED)
        for path in (directory / folder_of(case)).glob("*.zst")
    ]
    cases = _by_case(session, events, whole, writers)
    events.unpersist()
    return Diagnosed(whole, cases)


def _by_case(session: SparkSession, events: DataFrame, whole: Analysis, writers: Rows) -> dict[str, Analysis]:
    shape = "array<struct<case: string, writer: string>>"
    table = session.sql(f"select distinct * from (select inline(from_json(:rows, '{shape}')))",
                        args={"rows": json.dumps(writers)})  # fmt: skip
    missing = hole_queries.table_of(session, holes.by_writer(whole.files, {}))
    steps = flow.flow_of(events).persist()
    by_hash = table.select("case", F.xxhash64("writer").alias("writer"))
    of_stream = steps.where(F.col("kind") <= flow.SPURIOUS).groupBy("stream").agg(F.max("writer").alias("writer"))
    of_stream = of_stream.join(by_hash, "writer").select("stream", "case").persist()
    ordered = network.in_order(flow.packets_of(steps, missing)).persist()
    streams = network.stream_table(ordered).persist()
    turns = timing.steps_of(steps, streams).persist()
    found = stalls.stalls_of(turns, steps, ordered, streams, events, missing)
    named = streams.join(of_stream, "stream")
    totals = network.totals_of(named, "case")
    most = totals.select("case", F.col("payload_most"))
    limited = limits.limits_of(turns, named.join(most, "case"), F.col("payload_most"), "case")
    stalled = stalls.stalls_by_cause(found.join(of_stream, "stream"), "case")
    trips = (
        ordered.where("trip_us is not null")
        .join(of_stream, "stream")
        .groupBy("case")
        .agg(F.min("trip_us").alias("us_min"), percentiles("trip_us", 0.5, 0.95, 0.99).alias("us"))
    )
    details = counts.details_of(events.join(table, "writer"), "case")
    rows = {
        name: [row.asDict() for row in frame.collect()]
        for name, frame in (
            ("totals", totals), ("limits", limited), ("stalls", stalled), ("trips", trips), ("details", details),
        )
    }  # fmt: skip
    names = [case.name for case in (*CASES, *INVENTED)]
    return {name: _analysis({kind: [row for row in of if row["case"] == name] for kind, of in rows.items()})
            for name in names}  # fmt: skip


def _analysis(rows: dict[str, Rows]) -> Analysis:
    result = Analysis()
    result.totals = rows["totals"][0] if rows["totals"] else {}
    result.gilbert = tables.fitted(result.totals) if result.totals else {}
    result.limits = rows["limits"][0] if rows["limits"] else {}
    result.trips = rows["trips"][0] if rows["trips"] else {}
    result.stalls = rows["stalls"]
    result.exchanges = tables.exchanges(rows["details"])
    result.batches = tables.batches(rows["details"])
    result.absences = tables.absences(rows["details"])
    return result


def main(directory: Path) -> None:
    """Play the cases if needed, analyse them, and print the verdicts."""
    if not directory.is_dir():
        play((*CASES, *INVENTED), directory)
    session = make_session("local[2]", memory="1g", settings=SETTINGS)
    found = diagnose(session, directory)
    session.stop()
    (directory / "diagnosed.json").write_bytes(msgspec.json.encode(found))
    for case in (*CASES, *INVENTED):
        of = found.cases[case.name]
        first = blames(of)[0].family if of.totals and blames(of) else "?"
        print(f"{'ok ' if first == case.cause else 'NOT'} {case.name}: {first}, expected {case.cause}")
        for sentence in verdict(of):
            print(f"      {sentence}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
