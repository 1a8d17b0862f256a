"""The step from trace files to Parquet tables: it adds each event exactly once. A call adds all new events, or none."""

from collections import defaultdict
from collections.abc import Callable

from tunnel.analysis.engines.engine import Engine, Rows
from tunnel.analysis.engines.failures import NoTracesError
from tunnel.analysis.engines.folders import Folder
from tunnel.analysis.engines.queries import query
from tunnel.analysis.kept.intake import Added, add_new
from tunnel.analysis.kept.ledger import Intake, Ledger

__all__ = ["compact"]


def compact(
    engine: Engine, traces: Folder, ledger: Ledger, progress: Callable[[str], None] = lambda text: None
) -> Intake:
    """Add the new files of a folder to the tables of the ledger.

    It may be interrupted and called again. Raise NoTracesError if the folder does not exist, or if it has no traces and
    the tables have none from before. Raise SetupError or JobError if the engine could not add the files; then it added
    none.
    """
    if not traces.is_folder():
        raise NoTracesError(f"{traces.place()} is not a directory: name the one that --trace wrote to")

    def append(files: list[str], data: str) -> dict[str, Added]:
        progress(f"adding {len(files)} trace files to the tables")
        try:
            return _added(engine, files, ledger.folder, data)
        except Exception as error:  # the classes differ between versions of the engines, and some are of Java
            raise engine.failure_of(error, f"nothing was added to the tables in {ledger.place}") from error

    progress("reading the traces")
    intake = add_new(traces, ledger, append)
    if not intake.files:
        raise NoTracesError(f"no traces in {traces.place()}: run a command with --trace {traces.place()} first")
    return intake


def _added(engine: Engine, files: list[str], folder: Folder, data: str) -> dict[str, Added]:
    """Write the lines of files to a new folder, and count what is there, by file and writer."""
    sources = engine.append(files, folder, data)
    engine.read(folder, [data])
    engine.view("records", query("records"))
    found: dict[str, Rows] = defaultdict(list)
    for row in engine.rows(query("health")):
        found[row.pop("source")].append(row)
    counted = ("events", "bad_lines", "other_versions")  # each line is one of these
    return {
        uri: Added(source, sum(row[name] for row in found[source] for name in counted), found[source])
        for uri, source in sources.items()
    }
