"""The result of the last report, stored beside the tables: a report over the same traces starts no engine.

Tables grow only by commit records, which never change. So a result is valid as long as four things are the same: the
records, the findings about the trace files, the code of the analysis, and the engine with its version. Its name is
their digest.
"""

from contextlib import suppress
from importlib import metadata
from importlib.resources import files
from importlib.resources.abc import Traversable

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_128

from tunnel.analysis.engines.engine import DUCKDB, SPARK
from tunnel.analysis.kept.ledger import Intake, Ledger
from tunnel.analysis.results.result import Analysis

__all__ = ["as_loaded", "digest_of_code", "load", "store"]

_RESULTS = "results"
_PACKAGES = ("tunnel.analysis", "tunnel.traces")  # traces define the events and causes
_SUFFIXES = (".py", ".so", ".pyd", ".sql")  # of modules, of compiled modules, and of queries
_PACKAGE_OF = {DUCKDB: "duckdb", SPARK: "pyspark"}


def load(ledger: Ledger, intake: Intake, engine: str) -> Analysis | None:
    """Return the stored result for the present tables and findings; None if there is none, or if it is damaged."""
    name = _name(ledger, intake, engine)
    try:
        if name not in ledger.folder.names(_RESULTS):
            return None
        digest, _, data = ledger.folder.read(f"{_RESULTS}/{name}").partition(b"\n")
        return msgspec.msgpack.decode(data, type=Analysis) if digest == xxh3_64_hexdigest(data).encode() else None
    except (OSError, msgspec.DecodeError):  # another report may have stored its result meanwhile
        return None


def store(ledger: Ledger, intake: Intake, engine: str, result: Analysis) -> None:
    """Store a result, in place of all earlier ones. A result that cannot be written is computed again next time."""
    name = _name(ledger, intake, engine)
    data = msgspec.msgpack.encode(result)
    with suppress(Exception):  # with Hadoop, also errors of Java: the report is worth more than its copy
        ledger.folder.make(_RESULTS)
        for other in ledger.folder.names(_RESULTS):
            ledger.folder.remove(f"{_RESULTS}/{other}")
        ledger.folder.put_if_absent(f"{_RESULTS}/{name}", xxh3_64_hexdigest(data).encode() + b"\n" + data)


def as_loaded(result: Analysis) -> Analysis:
    """Return a result as `load` would return it, so that the first report equals later ones."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=Analysis)


def _name(ledger: Ledger, intake: Intake, engine: str) -> str:
    digest = xxh3_128(_digest_of_code_and(engine))
    rows = (ledger.entries, ledger.state.expired)  # the rows are the same in whatever folders they lie
    for part in (msgspec.msgpack.encode(rows), msgspec.msgpack.encode(intake)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _version_of(engine: str) -> str:
    try:
        return metadata.version(_PACKAGE_OF[engine])
    except metadata.PackageNotFoundError:  # spark-submit brings its own pyspark; a change of its version goes unnoticed
        return ""


def _digest_of_code_and(engine: str) -> bytes:
    """Return a digest of the modules and queries that a result depends on, and of the engine's name and version."""
    return f"{digest_of_code()} {engine} {_version_of(engine)}".encode()


def digest_of_code() -> str:
    """Return a digest of the modules and queries that a result depends on."""
    digest = xxh3_128()
    for package in _PACKAGES:
        for source in _sources(files(package)):
            digest.update(f"\n{source.name}\n".encode())
            digest.update(source.read_bytes())
    return digest.hexdigest()


def _sources(folder: Traversable) -> list[Traversable]:
    """Return the modules and queries in a folder and those below it, in order."""
    found = []
    for each in sorted(folder.iterdir(), key=lambda each: each.name):
        if each.is_dir():
            found += _sources(each)
        elif each.name.endswith(_SUFFIXES):
            found.append(each)
    return found
