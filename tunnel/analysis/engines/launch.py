"""The start of an engine: which one a command uses, what it needs of this machine, and errors in one line each."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from tunnel.analysis.engines.engine import DUCKDB, SPARK, Engine
from tunnel.analysis.engines.failures import SetupError
from tunnel.analysis.engines.folders import local_path
from tunnel.system.installing import install_command

__all__ = ["EMBEDDED_BYTES", "engine_for", "running"]

EMBEDDED_BYTES = 200_000_000
"""Up to this size of compressed traces, about ten million events, DuckDB is the default."""

_LOG_BYTES = 100_000
_COMPLAINT = re.compile(r"error|exception|invalid|unrecognized|could not|cannot|no such", re.IGNORECASE)


def engine_for(wanted: str, master: str, places: list[str], traces_bytes: int) -> str:
    """Return the engine that a command uses: the one that is `wanted`, or else the one that suits.

    `places` are the directories of traces and tables. Raise SetupError if DuckDB is wanted and cannot do the work.
    """
    abroad = next((place for place in places if local_path(place) is None), "")
    if wanted == DUCKDB and master:
        raise SetupError(f"--engine duckdb runs in this process and has no --master {master}: leave out one of the two")
    if wanted == DUCKDB and abroad:
        raise SetupError(f"--engine duckdb reads and writes this machine only, and {abroad} is elsewhere: use Spark")
    if wanted:
        return wanted
    is_for_spark = master or abroad or "PYSPARK_GATEWAY_PORT" in os.environ or traces_bytes > EMBEDDED_BYTES
    return SPARK if is_for_spark else DUCKDB


@contextmanager
def running(engine: str, master: str, memory: str, *, brief: bool, show_log: bool = False) -> Iterator[Engine]:
    """Yield the engine of this name, and stop it in the end. Raise SetupError if it cannot run here.

    The engines are imported only by the commands that need them. `memory` is a size, as in "3g"; `brief` tells Spark
    that there is little to do; with `show_log`, Java's own messages go to standard error.
    """
    if engine == DUCKDB:
        with _running_duckdb(memory) as duck:
            yield duck
    else:
        with _running_spark(master, memory, brief=brief, show_log=show_log) as spark:
            yield spark


@contextmanager
def _running_duckdb(memory: str) -> Iterator[Engine]:
    if find_spec("duckdb") is None:
        raise SetupError(f"DuckDB is not installed: {install_command('duckdb')}")
    from tunnel.analysis.engines.duck import DuckEngine

    with tempfile.TemporaryDirectory(prefix="tunnel-traces-") as spill:
        try:
            engine = DuckEngine(memory, Path(spill))
        except ValueError:
            raise SetupError(f"--memory {memory} is no size: write it as in --memory 3g") from None
        try:
            yield engine
        finally:
            engine.close()


@contextmanager
def _running_spark(master: str, memory: str, *, brief: bool, show_log: bool = False) -> Iterator[Engine]:
    if find_spec("pyspark") is None:
        here = "" if master else ", or add --engine duckdb if the traces and tables are on this machine"
        raise SetupError(f"Spark is not installed: {install_command('pyspark')}, and install Java 17 or later{here}")
    from tunnel.analysis.engines.session import make_session
    from tunnel.analysis.engines.spark import SparkEngine

    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ  # then spark-submit has started Java
    if not under_submit:
        _require_java()
        if (master or "local").startswith("local"):
            _require_executable(Path(tempfile.gettempdir()))
    session: Any
    with tempfile.TemporaryFile() as log:
        try:
            if under_submit or show_log:
                session = make_session(master, memory=memory, brief=brief, show_log=show_log)
            else:
                with _standard_error_to(log):
                    session = make_session(master, memory=memory, brief=brief)
        except Exception as error:  # the classes differ between versions of Spark, and some are of Java
            option = f"--master {master}, " if master else ""
            raise SetupError(
                f"Spark does not start ({_reason(error, log)}): check {option}--memory {memory}, and that "
                "`java -version` says 17 or later; with --log debug before the command's name, Java says more"
            ) from error
    try:
        yield SparkEngine(session)
    finally:
        with suppress(Exception):  # an error of stopping a Java that has died must not hide the first error
            session.stop()


def _reason(error: Exception, log: BinaryIO) -> str:
    """Return the first complaint of Java, or else the first line of the error."""
    log.seek(0)
    said = log.read(_LOG_BYTES).decode(errors="replace").splitlines()
    lines = [line.strip() for line in said if _COMPLAINT.search(line)]
    lines += [line.strip() for line in str(error).splitlines() if line.strip()]
    return next(iter(lines), type(error).__name__)


@contextmanager
def _standard_error_to(file: BinaryIO) -> Iterator[None]:
    """Let programs that start while the context lasts write their standard error to a file."""
    saved = os.dup(2)
    os.dup2(file.fileno(), 2)
    try:
        yield
    finally:
        os.dup2(saved, 2)
        os.close(saved)


def _require_java() -> None:
    """Raise SetupError if there is no Java: Spark's script would say so in lines that name only its own variables."""
    home = os.environ.get("JAVA_HOME", "")
    if shutil.which(str(Path(home, "bin", "java")) if home else "java") is None:
        where = f"JAVA_HOME is {home!r}, which holds no bin/java" if home else "no `java` is in the PATH"
        raise SetupError(f"Spark needs Java, but {where}: install Java 17 or later, or set JAVA_HOME to its directory")


def _require_executable(directory: Path) -> None:
    """Raise SetupError if programs in the directory cannot be run: Spark unpacks native libraries there."""
    if os.statvfs(directory).f_flag & os.ST_NOEXEC:
        raise SetupError(
            f"Spark unpacks native libraries into {directory}, which is mounted noexec, so it could not load them: "
            "set TMPDIR to a directory that allows it, as in TMPDIR=$HOME tunnel-traces ..."
        )
