"""Traces and tables in a folder of Hadoop: `python -m tests.analysis.hadoop_job URI DIRECTORY` prints what it found."""

from __future__ import annotations

import contextlib
import io
import sys
import time
from pathlib import Path

import msgspec

from tests.analysis.plain import compressed, plain
from tests.analysis.settings import SETTINGS
from tunnel.analysis.cli import main as command
from tunnel.analysis.engines.failures import NoTracesError
from tunnel.analysis.engines.folders import Folder, LocalFolder, UnusableError
from tunnel.analysis.engines.hadoop import HadoopFolder
from tunnel.analysis.engines.session import make_session
from tunnel.analysis.engines.spark import SparkEngine
from tunnel.analysis.kept.ingest import compact
from tunnel.analysis.kept.ledger import Entry, Ledger, LedgerError, TraceFile, open_ledger
from tunnel.traces.salvage import SUFFIX, examine

__all__ = ["EVENTS", "Found", "main"]

EVENTS = 5_003
LEASE_S = 3.0
RENEW_S = 0.2
WAIT_S = 300.0
DEAD = b"process 7 on elsewhere, 12345678"


class Found(msgspec.Struct):
    """The results."""

    default: str
    """The default file system."""
    local: int = -1
    """Events in the tables of a directory that was named by a plain path."""
    first: int = -1
    again: int = -1
    more: int = -1
    """Events in the tables of the URI after the `first` run, `again` after another one, and `more` after copies and one
    new event were added."""
    problems: list[list[str]] = []
    sources: list[str] = []
    names: list[str] = []
    """The files that readers see below the folder."""
    commits: list[str] = []
    left: list[str] = []
    """Staged files, and the data folder of a killed command, that were left."""
    errors: dict[str, str] = {}
    renewals: int = 0
    fenced: bool = False
    """Whether a process that had lost its lock was kept from adding a record."""
    command: list[str] = []
    """The exit code and the output of the command on the URI."""


def _take_in(engine: SparkEngine, traces: Folder, tables: Folder) -> int:
    with open_ledger(tables) as ledger:
        compact(engine, traces, ledger)
    ledger = Ledger(tables)
    engine.read(ledger.folder, ledger.data())
    (row,) = engine.rows("select count(*) as n from stored")
    return int(row["n"])


def _upload(traces: Path, folder: Folder) -> None:
    for path in sorted(each for each in traces.rglob("*") if each.is_file()):
        name = str(path.relative_to(traces))
        folder.make(str(Path(name).parent) if "/" in name else "")
        folder.remove(name)
        folder.write(name, path.read_bytes())


def _traces(traces: Path) -> None:
    compressed(traces, "one", EVENTS - 3)
    plain(traces / "node=7", "two ä%41 [b]*?{c,d}.jsonl", 3)
    (traces / f"_left-{2**30}-aa-00001{SUFFIX}").write_bytes(b"x")


def _copies(traces: Path) -> None:
    """Add a copy in another form, a cut one, and one new event."""
    (original,) = traces.glob(f"one*{SUFFIX}")
    (traces / "unpacked.jsonl").write_bytes(b"".join(examine(original)[1]))
    (traces / f"cut{SUFFIX}").write_bytes(original.read_bytes()[:-5])
    plain(traces, "new.jsonl", 1)


def _error(run: object) -> str:
    try:
        run()  # type: ignore[operator]
    except (LedgerError, NoTracesError, UnusableError, FileExistsError, FileNotFoundError) as error:
        return f"{type(error).__name__}: {error}"
    return ""


def _locks(found: Found, engine: SparkEngine, tables: HadoopFolder) -> None:
    def again() -> None:
        with open_ledger(HadoopFolder(engine.session, tables.place())):
            raise AssertionError

    deadline = time.monotonic() + WAIT_S
    with open_ledger(tables):
        found.errors["second"] = _error(again)
        seen = {tables.status("lock").changed_ns}
        while len(seen) < 3 and time.monotonic() < deadline:
            with contextlib.suppress(FileNotFoundError):
                seen.add(tables.status("lock").changed_ns)
        found.renewals = len(seen) - 1
        former = Ledger(tables)
    tables.write("lock", DEAD)
    found.errors["killed"] = _error(again)
    is_open = False
    while not is_open and time.monotonic() < deadline:
        with contextlib.suppress(LedgerError), open_ledger(tables):
            is_open = True
    error = _error(lambda: former.commit([Entry(TraceFile("a", 1, 1))]))
    found.fenced = is_open and "another process has added to the tables" in error


def _errors(found: Found, engine: SparkEngine, uri: str, tables: HadoopFolder) -> None:
    found.errors["no such folder"] = _error(
        lambda: _take_in(engine, HadoopFolder(engine.session, f"{uri}/none"), tables)
    )
    found.errors["no such file system"] = _error(lambda: HadoopFolder(engine.session, "nothing://here/traces"))
    found.errors["exists"] = _error(lambda: tables.write("commits/00000001.json", b""))
    found.errors["record exists"] = _error(lambda: tables.put_if_absent("commits/00000001.json", b""))
    found.errors["missing"] = _error(lambda: tables.read("commits/none"))


def main(uri: str, directory: Path) -> None:
    """Run the whole job."""
    session = make_session("local[1]", memory="600m", settings=SETTINGS)
    engine, context = SparkEngine(session), session.sparkContext
    hadoop = context._jvm.org.apache.hadoop.fs  # type: ignore[union-attr]
    found = Found(hadoop.FileSystem.getDefaultUri(context._jsc.hadoopConfiguration()).toString())
    local = directory / "traces"
    _traces(local)
    found.local = _take_in(engine, LocalFolder(local), LocalFolder(directory / "tables"))
    traces = HadoopFolder(engine.session, f"{uri}/traces")
    tables = HadoopFolder(engine.session, f"{uri}/traces/_tables", lease_s=LEASE_S, renew_s=RENEW_S)
    _upload(local, traces)
    found.first = _take_in(engine, traces, tables)
    found.again = _take_in(engine, traces, tables)
    _copies(local)
    _upload(local, traces)
    tables.make("events/00000009-0123abcd")  # as a killed command leaves it
    found.more = _take_in(engine, traces, tables)
    intake = Ledger(tables).intake
    found.problems = [[file.name.partition("-")[0], file.problem] for file in intake.files]
    found.sources = sorted(row["file"] for row in intake.found)
    found.names = [file.name for file in traces.walk()]
    found.commits = tables.names("commits")
    found.left = tables.names("staged") + [name for name in tables.names("events") if name.startswith("00000009")]
    _errors(found, engine, uri, tables)
    _locks(found, engine, tables)
    session.stop()
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        code = command(["compact", f"{uri}/traces", "--json", "--memory", "600m", "--master", "local[1]"])
    found.command = [str(code), output.getvalue()]
    (directory / "found.json").write_bytes(msgspec.json.encode(found))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
