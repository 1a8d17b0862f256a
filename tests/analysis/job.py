"""The work that most tests share, in one process of its own: traces of several scenarios, analysed by DuckDB.

`python -m tests.analysis.job DIRECTORY` writes the traces and its results there, as JSON.
"""

import shutil
import sys
from pathlib import Path
from typing import Any

import msgspec

from tests.analysis.damage import damaged_directory
from tests.analysis.drawn import Drawn, draw
from tests.analysis.ends import ENDS, stream_of, write_ends
from tests.analysis.engines import analysis_of, count_of, duckdb, measured, take_in
from tests.analysis.moved import write_moves
from tests.analysis.proxied import talk_through_faults
from tests.analysis.stalls import write_silences
from tests.analysis.truth import Run, simulate
from tunnel.analysis.engines.duck import DuckEngine
from tunnel.analysis.page.report import render
from tunnel.analysis.results.analyse import begin, streams_kept
from tunnel.analysis.results.result import Analysis

__all__ = ["SCENARIOS", "Found", "main"]

ALONE = next(stream_of(ends) for ends in ENDS if ends.name == "sender alone, with repeats")
SCENARIOS = ("truth", "damaged", "proxied", "silences", "ends", "alone", "moves")
"""The directories with traces."""


class Found(msgspec.Struct):
    """The faults that were injected, and the results of the analysis."""

    truth: Analysis
    injected: list[tuple[int, int]]
    injected_again: int
    """Repeats that were lost on purpose."""
    strikes: dict[str, int]
    lost: list[tuple[int, int]]
    """Packets whose first attempt was lost, according to the analysis."""
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
    """The exchanges of the client behind that proxy, by event."""
    ends: list[dict[str, Any]]
    """The streams of ends.ENDS, and those of a run over a path of 300 ms, there and back."""
    ends_stalls: list[tuple[int, str]]
    drawn: Drawn
    alone: Analysis
    """The analysis of a sender's trace, without the trace of the other end."""
    moves: Analysis
    """The analysis of connections that moved between relays."""


def _write(directory: Path) -> tuple[Run, dict[str, str], dict[str, int]]:
    """Write the traces of all scenarios. Return what was injected into three of them."""
    run = simulate(directory / "truth", streams=12, bytes_each=600_000)
    expected = damaged_directory(directory / "damaged")
    proxied = talk_through_faults(directory / "proxied")
    for name in ("silences", "alone"):
        (directory / name).mkdir()
    write_silences(directory / "silences")
    write_ends(directory / "ends")
    write_moves(directory / "moves")
    shutil.copy(directory / "ends" / f"sender-{ALONE}.jsonl", directory / "alone")
    simulate(directory / "ends", streams=1, bytes_each=400_000, delay_us=150_000, resets=0.0)
    return run, expected, proxied


def _rows_of_damaged(engine: DuckEngine, directory: Path) -> tuple[int, int, int]:
    """Return the number of rows before and after another run without a new file, and after one with a new file."""
    traces, work = directory / "damaged", directory / "tables" / "damaged"
    first = count_of(engine, work)
    take_in(engine, traces, work)
    again = count_of(engine, work)
    more = directory / "more" / "more.jsonl"
    more.parent.mkdir()
    more.write_text('{"version":1,"time_us":1,"node":"a","event":"loop_lag","writer":"more","number":1}\n')
    take_in(engine, more.parent, work)
    return first, again, count_of(engine, work)


def main(directory: Path) -> None:
    """Run the whole job."""
    run, expected, proxied = _write(directory)
    tables = directory / "tables"
    with duckdb() as engine:
        truth, damaged, of_proxied, alone, moves = (
            analysis_of(engine, directory / name, tables / name)
            for name in ("truth", "damaged", "proxied", "alone", "moves")
        )
        begin(engine, take_in(engine, directory / "truth", tables / "truth"))
        with streams_kept(engine):
            lost = engine.rows("select stream, sequence from packets where lost_first = 1")
            streams = engine.rows("select * from streams")
        rows = _rows_of_damaged(engine, directory)
        begin(engine, take_in(engine, directory / "proxied", tables / "proxied"))
        exchanges = engine.rows("select event, count(*) as n from events where node like 'faulty-%' group by event")
        silences = measured(engine, take_in(engine, directory / "silences", tables / "silences"))[1]
        intake = take_in(engine, directory / "ends", tables / "ends")
        ends, ends_stalls = measured(engine, intake)
        drawn = draw(engine, intake)
    for name, result in (("report", truth), ("alone", alone), ("damaged", damaged)):
        (directory / f"{name}.html").write_text(render(result, name))
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
        rows_first=rows[0],
        rows_again=rows[1],
        rows_more=rows[2],
        proxied=proxied,
        proxied_faults=of_proxied.faults,
        proxied_exchanges=exchanges,
        ends=ends,
        ends_stalls=ends_stalls,
        drawn=drawn,
        alone=alone,
        moves=moves,
    )
    (directory / "found.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
