"""The result of the last report, kept beside the tables: a report over the same tables needs no Spark.

Tables only grow by commit records, which never change. So a result holds as long as the records, the findings about
the trace files, and the code of the analysis are the same; its name is a digest of these three.
"""

from contextlib import suppress
from importlib import metadata
from importlib.resources import files

import msgspec
from xxhash import xxh3_64_hexdigest, xxh3_128

from tunnel.analysis.ledger import Intake, Ledger
from tunnel.analysis.result import Analysis

__all__ = ["find", "keep", "plain"]

_RESULTS = "results"
_CODE = (".py", ".so", ".pyd")  # suffixes of modules, compiled or not


def find(ledger: Ledger, intake: Intake) -> Analysis | None:
    """Return the kept result for the present tables and findings; None if there is none, or if it is damaged."""
    name = _name(ledger, intake)
    if name not in ledger.folder.names(_RESULTS):
        return None
    content = ledger.folder.read(f"{_RESULTS}/{name}")
    digest, _, data = content.partition(b"\n")
    if digest != xxh3_64_hexdigest(data).encode():
        return None
    return msgspec.msgpack.decode(data, type=Analysis)


def keep(ledger: Ledger, intake: Intake, result: Analysis) -> None:
    """Keep a result, in place of all earlier ones. A result that cannot be written is computed again next time."""
    name = _name(ledger, intake)
    data = msgspec.msgpack.encode(result)
    with suppress(OSError):
        ledger.folder.make(_RESULTS)
        for other in ledger.folder.names(_RESULTS):
            ledger.folder.remove(f"{_RESULTS}/{other}")
        ledger.folder.put_if_absent(f"{_RESULTS}/{name}", xxh3_64_hexdigest(data).encode() + b"\n" + data)


def plain(result: Analysis) -> Analysis:
    """Return a result as `find` would return it, so that a first and a second report are the same."""
    return msgspec.msgpack.decode(msgspec.msgpack.encode(result), type=Analysis)


def _name(ledger: Ledger, intake: Intake) -> str:
    digest = xxh3_128(_code())
    for part in (msgspec.msgpack.encode(ledger.commits), msgspec.msgpack.encode(intake)):
        digest.update(len(part).to_bytes(8, "big"))
        digest.update(part)
    return digest.hexdigest()


def _version_of_spark() -> str:
    try:
        return metadata.version("pyspark")
    except metadata.PackageNotFoundError:  # spark-submit brings its own
        return ""


def _code() -> bytes:
    """Return a digest of the modules of this package, and of Spark's version."""
    digest = xxh3_128(_version_of_spark().encode())
    modules = (each for each in files(__package__).iterdir() if each.name.endswith(_CODE))
    for module in sorted(modules, key=lambda each: each.name):
        digest.update(f"\n{module.name}\n".encode())
        digest.update(module.read_bytes())
    return digest.digest()
