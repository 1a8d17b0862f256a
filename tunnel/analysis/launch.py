"""The start of Spark: what it needs of this machine, and its errors in one line each."""

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, BinaryIO

from tunnel.analysis.failures import SetupError
from tunnel.installing import install_command

__all__ = ["running_spark"]

_LOG_BYTES = 100_000
_COMPLAINT = re.compile(r"error|exception|invalid|unrecognized|could not|cannot|no such", re.IGNORECASE)


@contextmanager
def running_spark(master: str, memory: str, *, brief: bool, show_log: bool = False) -> Iterator[Any]:
    """Yield a SparkSession, and stop it in the end. Raise SetupError if Spark cannot run here.

    Spark is imported only by the commands that need it. With `show_log`, Java's own messages go to standard error.
    """
    if find_spec("pyspark") is None:
        raise SetupError(f"Spark is not installed: {install_command('pyspark')}, and install Java 17 or later")
    from tunnel.analysis.session import make_session

    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ  # then spark-submit has started Java
    if not under_submit:
        _require_java()
        if (master or "local").startswith("local"):
            _require_executable(Path(tempfile.gettempdir()))
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
        yield session
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
