"""Configures structlog: every line passes the limits, is rendered and goes to the writer."""

import contextlib
import logging
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any, TextIO

import msgspec
import structlog
from structlog.typing import EventDict, Processor

from tunnel.ground.printable import counted, printable, printable_lines
from tunnel.logs.limits import INTERVAL_US, LineLimits, Source, SourceKind, Suppressed
from tunnel.logs.writer import LineWriter, write_to
from tunnel.system.clock import now_us

__all__ = ["Limiting", "LogCounts", "configure", "log_counts", "queued", "tell", "writes_events"]

_LIBRARY = "library"  # the event of lines from Python's own logging
_FIELD_LETTERS_MAX = 4000  # of one field, except for the traceback
_TRACEBACK_LETTERS_MAX = 16_000
_UNAUTHENTICATED_PAY = "@unauthenticated"  # the payer of the lines about unauthenticated clients; no user has this name
_CLOSE_S = 2.0  # longest time for writing the lines that still wait when the process ends
SourceOf = Callable[[str], str]


class LogCounts(msgspec.Struct, frozen=True):
    """Lines since the start: written, dropped because too many waited or writing failed, and suppressed by limits."""

    written: int = 0
    dropped: int = 0
    suppressed: int = 0


class Limiting:
    """A structlog processor that drops the lines beyond the limits. `say` writes a line about them.

    `say` is called when another line comes, or when the owner calls `say_suppressed`. `began` is called when the
    first line is dropped, since there will be something to say.

    A line is about the user in its field `user`, else about the address in its field `address`, else about the library
    that wrote it, else about the process. `source_of` returns the source to which an address belongs, such as its
    network.
    """

    def __init__(
        self,
        say: Callable[[Suppressed], None],
        source_of: SourceOf = str,
        began: Callable[[], None] = lambda: None,
    ) -> None:
        self._limits = LineLimits()
        self._say = say
        self._source_of = source_of
        self._began = began
        self._lock = threading.RLock()

    @property
    def lines_suppressed(self) -> int:
        """The number of lines that were left out."""
        return self._limits.suppressed

    def __call__(self, logger: Any, method: str, fields: EventDict) -> EventDict:
        with self._lock:
            had_none = self.say_suppressed() is None
            passes = self._limits.passes(str(fields.get("event")), self.source(fields), method, now_us())
        if not passes:
            if had_none:
                self._began()
            raise structlog.DropEvent
        return fields

    def say_suppressed(self, *, is_last: bool = False) -> float | None:
        """Say how many lines were left out in each second that is over; at the last call, in the present one, too.

        Return the number of seconds until the next call, or None if there will be nothing to say.
        """
        with self._lock:
            now = now_us() + (INTERVAL_US if is_last else 0)
            while (found := self._limits.poll_suppressed(now)) is not None:
                self._say(found)
            due_us = self._limits.next_timeout()
        return None if due_us is None else max(0, due_us - now) / 1e6

    def wrote(self, source: Source, count: int) -> None:
        """Note the size of a line about this source, which is written."""
        with self._lock:
            self._limits.wrote(source, count, now_us())

    def source(self, fields: EventDict) -> Source:
        """Return the source that a line is about."""
        if "user" in fields:
            return Source(SourceKind.USER, str(fields["user"]))
        if "address" in fields:
            return Source(SourceKind.ADDRESS, self._source_of(str(fields["address"])))
        if fields.get("event") == _LIBRARY:
            return Source(SourceKind.LIBRARY, str(fields.get("logger")))
        return Source(SourceKind.PROCESS)


class _Log:
    """The log of the process. It is also structlog's logger, which gets the rendered lines."""

    def __init__(
        self, stream: TextIO, *, colors: bool, source_of: SourceOf, is_queued: bool, is_events: bool = False
    ) -> None:
        self.is_events = is_events
        self._write = write_to(stream)
        self._limiting = Limiting(self._say_suppressed, source_of, self._look)
        self._finish: list[Processor] = [
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            _cut,
        ]
        if stream.isatty() and not is_events:
            self._finish += [_made_printable, structlog.dev.ConsoleRenderer(colors=colors)]
        else:
            self._finish.append(structlog.processors.JSONRenderer())  # in ASCII
        self.processors: list[Processor] = [self._limiting, *self._finish[:-1], self._rendered]
        self._writer = LineWriter(self._write, self._lost, self._limiting.say_suppressed) if is_queued else None
        self._lines = 0  # written without the thread

    # --- the logger

    def msg(self, text: str, payer: str = "") -> None:
        """Write a rendered line, or queue it."""
        line = f"{text}\n".encode(errors="backslashreplace")
        if self._writer is not None:
            self._writer.put(line, payer)
        else:
            self._write(line)
            self._lines += 1

    debug = info = warning = error = critical = msg

    def tell(self, text: str) -> None:
        """Write a line for people, as an event if the reader of the log is a program."""
        self.msg(self._line("warning", {"event": "message"}, text) if self.is_events else text)

    @property
    def is_queued(self) -> bool:
        return self._writer is not None

    @property
    def counts(self) -> LogCounts:
        writer, suppressed = self._writer, self._limiting.lines_suppressed
        if writer is None:
            return LogCounts(self._lines, 0, suppressed)
        return LogCounts(writer.written, writer.dropped, suppressed)

    def close(self) -> bool:
        """Write what waits, for a limited time. Return whether all of it is written."""
        with contextlib.suppress(OSError, ValueError):
            self._limiting.say_suppressed(is_last=True)
        return self._writer is None or self._writer.close(_CLOSE_S)

    # --- processors

    def _rendered(self, logger: Any, method: str, fields: EventDict) -> tuple[tuple[str, str], dict[str, Any]]:
        payer = str(fields["user"]) if "user" in fields else _UNAUTHENTICATED_PAY if "address" in fields else ""
        source = self._limiting.source(fields)
        text = str(self._finish[-1](logger, method, fields))
        self._limiting.wrote(source, len(text))
        return (text, payer), {}

    # --- lines about the log itself

    def _say_suppressed(self, found: Suppressed) -> None:
        about = {found.source.kind.value: found.source.name} if found.source.name else {}
        if found.source.kind is SourceKind.UNAUTHENTICATED:
            about = {"address": "many"}
        text = f"{found.lines} more lines suppressed"
        line = self._line(found.level, {"event": "suppressed", "kind": found.kind, **about, "lines": found.lines}, text)
        self._limiting.wrote(found.source, len(line))
        self.msg(line)

    def _lost(self, count: int) -> bytes:
        text = f"the log lacks {counted(count, 'line')}, because it was not read or could not be written"
        return f"{self._line('warning', {'event': 'log_lines_lost', 'lines': count}, text)}\n".encode()

    def _line(self, method: str, fields: dict[str, Any], text: str) -> str:
        found: Any = {**fields, "text": text}
        for processor in self._finish:
            found = processor(None, method, found)
        return str(found)

    def _look(self) -> None:
        if self._writer is not None:
            self._writer.look()


class _Forwarding(logging.Handler):
    """Passes what libraries log with Python's own logging on to our log, in place of a write to standard error."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelno if record.levelno in (logging.WARNING, logging.ERROR) else logging.ERROR
        fields = {"exc_info": record.exc_info} if record.exc_info else {}
        structlog.get_logger().log(level, _LIBRARY, logger=record.name, text=record.getMessage(), **fields)


_current: _Log | None = None


def configure(
    level: int,
    stream: TextIO,
    *,
    colors: bool = False,
    source_of: SourceOf = str,
    is_queued: bool = False,
    is_events: bool = False,
) -> None:
    """Write one line for each event to `stream`: JSON, unless the stream is a terminal.

    `is_queued`: a thread writes the lines; use `queued` for this, which also ends the thread. `is_events`: a program
    reads the stream, so every line is JSON, also on a terminal, and also the lines of `tell`.
    """
    global _current
    log = _current = _Log(stream, colors=colors, source_of=source_of, is_queued=is_queued, is_events=is_events)
    structlog.configure(
        processors=log.processors,
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=lambda *_: log,
    )


@contextlib.contextmanager
def queued(
    level: int, stream: TextIO, *, colors: bool = False, source_of: SourceOf = str, is_events: bool = False
) -> Iterator[None]:
    """Let a thread write the log during the block. At its end, the lines that still wait get 2 s to be written."""
    configure(level, stream, colors=colors, source_of=source_of, is_queued=True, is_events=is_events)
    log = _current
    assert log is not None
    forwarding = _Forwarding(logging.WARNING)
    logging.getLogger().addHandler(forwarding)
    logging.captureWarnings(True)
    try:
        yield
    finally:
        logging.captureWarnings(False)
        logging.getLogger().removeHandler(forwarding)
        if log.close() and _current is log:
            configure(level, stream, colors=colors, source_of=source_of, is_events=is_events)
        # If lines are left, nothing reads the log: later lines are dropped, since writing them would not return.


def tell(text: str) -> None:
    """Write a line for people to standard error; while a thread writes the log, queue the line for that thread.

    It is meant for `tunnel.process.command_line.tell`, which has made the text printable.
    """
    if _current is not None and _current.is_queued:
        _current.tell(text)
    else:
        print(text, file=sys.stderr, flush=True)


def writes_events() -> bool:
    """Whether a program reads the log, so that people read nothing of this process."""
    return _current is not None and _current.is_events


def log_counts() -> LogCounts:
    """Return the counts of the log of this process."""
    return _current.counts if _current is not None else LogCounts()


def _cut(logger: Any, method: str, fields: EventDict) -> EventDict:
    """Shorten long fields: some of their text comes from other machines."""
    for name, value in fields.items():
        limit = _TRACEBACK_LETTERS_MAX if name == "exception" else _FIELD_LETTERS_MAX
        if isinstance(value, str) and len(value) > limit:
            fields[name] = f"{value[:limit]}... ({len(value) - limit} more letters)"
    return fields


class _Escaped:
    """Text that the renderer shows as it is, without quotes and escapes of its own."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


def _made_printable(logger: Any, method: str, fields: EventDict) -> EventDict:
    """Keep the fields from controlling the terminal, and each on its line; only a traceback has several."""
    for name, value in fields.items():
        text = value if isinstance(value, str) else repr(value)
        if text.isprintable():
            continue
        if name == "exception":
            fields[name] = printable_lines(text)
        else:
            fields[name] = printable(text) if name == "event" else _Escaped(printable(repr(value)))
    return fields
