"""The result of the last report, stored beside the tables: a report over the same traces needs no Spark.

Tables grow only by commit records, which never change. So a result is valid as long as four things are the same: the
records, the findings about the trace files, the code of the analysis, and Spark's version. Its name is their digest.
"""

from contextlib import suppress
from importlib import metadata
from importlib.resources import files

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_128

from tunnel.analysis.ledger import Intake, Ledger
from tunnel.analysis.result import Analysis

__all__ = ["as_loaded", "load", "store"]

_RESULTS = "results"
_PACKAGES = ("tunnel.analysis", "tunnel.traces")  # traces define the events and causes
_MODULE_SUFFIXES = (".py", ".so", ".pyd")  # Python's, and those of compiled modules


def load(ledger: Ledger, intake: Intake) -> Analysis | None:
    """Return the stored result for the present tables and findings; None if there is none, or if it is damaged."""
    name = _name(ledger, intake)
    try:
        if name not in ledger.folder.names(_RESULTS):
            return None
        digest, _, data = ledger.folder.read(f"{_RESULTS}/{name}").partition(b"\n")
        return msgspec.msgpack.decode(data, type=Analysis) if digest == xxh3_64_hexdigest(data).encode() else None
    except (OSError, msgspec.DecodeError):  # another report may have stored its result meanwhile
        return None


def store(ledger: Ledger, intake: Intake, result: Analysis) -> None:
    """Store a result, in place of all earlier ones. A result that cannot be written is computed again next time."""
    name = _name(ledger, intake)
    data = msgspec.msgpack.encode(result)
    with suppress(Exception):  # with Hadoop, also errors of Java: the report is worth more than its copy
        ledger.folder.make(_RESULTS)
        for other in ledger.folder.names(_RESULTS):
            ledger.folder.remove(f"{_RESULTS}/{other}")
        ledger.folder.put_if_absent(f"{_RESULTS}/{name}", xxh3_64_hexdigest(data).encode() + b"\n" + data)


def as_loaded(result: Analysis) -> Analysis:
    """Return a result as `load` would return it, so that the first report equals later ones."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=Analysis)


def _name(ledger: Ledger, intake: Intake) -> str:
    digest = xxh3_128(_digest_of_code_and_spark())
    for part in (msgspec.msgpack.encode(ledger.commits), msgspec.msgpack.encode(intake)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _version_of_spark() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # spark-submit brings its own pyspark; a change of its version goes unnoticed
        return ""


def _digest_of_code_and_spark() -> bytes:
    """Return a digest of the modules that a result depends on, and of Spark's version."""
    digest = xxh3_128(_version_of_spark().encode())
    for package in _PACKAGES:
        modules = (each for each in files(package).iterdir() if each.name.endswith(_MODULE_SUFFIXES))
        for module in sorted(modules, key=lambda each: each.name):
            digest.update(f"\n{module.name}\n".encode())
            digest.update(module.read_bytes())
    return digest.digest()
