"""The errors of an engine in one line each: what happened, why, and what to do next."""

import re

__all__ = ["JobError", "NoTracesError", "QueryError", "SetupError", "failure_of"]

_REASON_LETTERS = 300

_CAUSE = re.compile(r"^Caused by: (?:[\w$]+\.)*([\w$]+(?:: .*)?)$", re.MULTILINE)
_NO_FILE = ("FileNotFoundException", "NoSuchFileException", "FILE_NOT_EXIST", "PATH_NOT_FOUND")
_SEE = (
    "a file that the job needs is not there for every process of Spark: check that the driver and all workers see the "
    "traces and the tables under the same path, and that no program removes them, and run the command again"
)
_ADVICE = (
    (_NO_FILE, _SEE),
    (("AccessControlException", "AccessDeniedException", "Permission denied"), "give Spark's processes access to it"),
    (("No space left on device",), "the disk is full: make room, also for Spark's temporary files, which TMPDIR moves"),
    (("OutOfMemoryError",), "Java's memory is not enough: give it more with --memory, as in --memory 6g"),
    (("Out of Memory Error",), "the memory is not enough: allow more with --memory, as in --memory 6g, or use Spark"),
    (("UnsatisfiedLinkError",), "Java cannot load a native library: set TMPDIR to a directory that is not noexec"),
)


class NoTracesError(Exception):
    """There are no traces to analyse."""


class QueryError(Exception):
    """A query of a user cannot be run. The text says why."""


class SetupError(Exception):
    """This machine or the cluster is not as the job needs it. The text says what to do."""


class JobError(Exception):
    """A job of the engine failed, for a reason that no code expected."""


def failure_of(error: Exception, result: str, engine: str) -> Exception:
    """Return the error of a failed job with a text of one line. `result` says what became of the command's work."""
    if isinstance(error, JobError | SetupError):
        return error
    text = str(error)
    reason = _reason(text) or type(error).__name__
    for signs, advice in _ADVICE:
        if any(sign in text for sign in signs):
            return SetupError(f"{engine}'s job failed ({reason}), and {result}: {advice}")
    return JobError(
        f"{engine}'s job failed ({reason}), and {result}: run the command again; if it fails again, run it with "
        "--log debug before its name to see more"
    )


def _reason(text: str) -> str:
    """Return the root cause: the last `Caused by` of Java's text or, without one, the first line."""
    causes = _CAUSE.findall(text)
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    chosen = causes[-1] if causes else next(iter(lines), "")
    return str(chosen)[:_REASON_LETTERS]
