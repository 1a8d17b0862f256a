"""The work of the tests that take long, in one process of its own: real processes in trouble, and all on Spark.

`python -m tests.analysis.spark_job SCENARIOS DIRECTORY` analyses the scenarios of `tests.analysis.job` again, and
writes its results to DIRECTORY, as JSON. Spark is set up for tiny data: without generated code, which takes longer to
compile than it saves. A session costs more than the work itself, so there is one.
"""

import os
import subprocess
import sys
from pathlib import Path

import msgspec

from tests.analysis.diagnosed import diagnose, gathered
from tests.analysis.engines import analysis_of, count_of, duckdb, grown, take_in
from tests.analysis.exactly_once import Attempts, attempt
from tests.analysis.job import SCENARIOS
from tests.analysis.plans import Query, queries_of
from tests.analysis.settings import SETTINGS
from tunnel.analysis.engines.session import make_session
from tunnel.analysis.engines.spark import SparkEngine
from tunnel.analysis.results import analyse as analyse_module
from tunnel.analysis.results.analyse import analyse
from tunnel.analysis.results.result import Analysis

__all__ = ["CASES", "SparkFound", "main"]

CASES = "cases"
"""The name of the scenario that is all cases of loadtests.diagnosis together."""


class SparkFound(msgspec.Struct):
    """The results."""

    spark: dict[str, Analysis]
    duckdb: dict[str, Analysis]
    """The analyses of the same directories: the scenarios, and CASES."""
    shared: tuple[int, int]
    """The number of events in the tables that DuckDB made of CASES: as Spark counts them, and as DuckDB does."""
    cases: dict[str, Analysis]
    """The analysis of each case."""
    python: str
    """The Python that Spark would start on its executors."""
    attempts: Attempts
    grown: tuple[Analysis, Analysis]
    """The analyses of a directory that has grown: with stored tables, and without."""
    queries: list[Query]
    """The queries with which Spark computed the scenario "truth"."""


def main(scenarios: Path, directory: Path) -> None:
    """Run the whole job."""
    played = directory / "cases"
    subprocess.run([sys.executable, "-m", "loadtests.diagnosis", str(played)], stdout=subprocess.DEVNULL, check=True)
    places = {name: scenarios / name for name in SCENARIOS} | {CASES: gathered(played)}
    with duckdb() as duck:
        tables = directory / "duckdb"
        by_duckdb = {name: analysis_of(duck, place, tables / name) for name, place in places.items()}
        counted = count_of(duck, tables / CASES)
    session = make_session("local[1]", memory="1g", settings=SETTINGS)
    spark = SparkEngine(session)
    tables = directory / "spark"
    by_spark = {name: analysis_of(spark, places[name], tables / name) for name in places if name != "truth"}
    session.conf.set("spark.sql.shuffle.partitions", "2")  # one partition needs no shuffle, and plans would show none
    intake = take_in(spark, places["truth"], tables / "truth")
    before = len(queries_of(session))
    by_spark["truth"] = analyse(spark, intake)
    queries = queries_of(session)[before:]
    session.conf.set("spark.sql.shuffle.partitions", "1")
    found = SparkFound(
        spark=by_spark,
        duckdb=by_duckdb,
        shared=(count_of(spark, directory / "duckdb" / CASES), counted),
        cases=diagnose(played),
        python=os.environ["PYSPARK_PYTHON"],
        attempts=attempt(spark, directory / "attempts"),
        grown=_grown(spark, scenarios / "ends", directory / "grown"),
        queries=queries,
    )
    session.stop()
    (directory / "found.json").write_bytes(msgspec.json.encode(found))


def _grown(spark: SparkEngine, traces: Path, base: Path) -> tuple[Analysis, Analysis]:
    analyse_module.EVENTS_MIN = 0  # type: ignore[attr-defined]
    return grown(spark, traces, base)


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
