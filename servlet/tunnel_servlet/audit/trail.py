"""Takes the events of the audit from the event loop, which never waits for the disk, and has them written."""

import asyncio
import secrets
import sys
import threading
import time
from pathlib import Path

import msgspec
import structlog

from tunnel.logs.writer import LineWriter
from tunnel.system.clock import now_us
from tunnel_servlet.audit.event import TEXT_LETTERS_MAX, AuditEvent, Kind, encode_event, time_text
from tunnel_servlet.audit.files import AuditFile
from tunnel_servlet.audit.places import Place, StreamPlace, SyslogPlace
from tunnel_servlet.audit.sums import NOBODY, Sums
from tunnel_servlet.settings import AuditSettings

__all__ = ["Trail", "open_place"]

_QUEUE_BYTES_MAX = 4 << 20  # of lines that wait: 10,000
_ROOM_BYTES = 16 * 1024  # that must be free for a user who opens a connection: more than its two lines
_RETRY_S = 1.0  # before the next attempt to write
_SHOUT_S = 60.0  # while nothing can be written, the log says so once in this time
_SUM_S = 60.0
_CLOSE_S = 5.0  # time to write what waits when the process ends
_USERS_NAMED_MAX = 20  # in the report of lost events

_log = structlog.get_logger("audit")


def open_place(settings: AuditSettings) -> Place:
    """Open the place that the settings name. Raise OSError if that fails."""
    if settings.to == "file":
        limits = {"bytes_max": settings.file_bytes_max, "files_max": settings.files_max}
        return AuditFile(Path(settings.file), syncs=settings.fsync, **limits)
    return StreamPlace(sys.stdout) if settings.to == "stdout" else SyslogPlace(settings.syslog)


class Trail:
    """The audit of one process. `note` takes an event and never waits.

    Events wait in a bounded queue; a user may hold no more of it than is free, so that one user's events do not push
    out those of another. An event that finds no room is lost, counted, and reported with the user in the audit itself
    as soon as possible. While the place cannot be written to, the thread tries again every second, and the log says so
    once a minute. Create it within the event loop that calls it.
    """

    def __init__(self, place: Place, settings: AuditSettings, *, retry_s: float = _RETRY_S) -> None:
        self.failures = 0  # attempts to write that have failed
        self.is_failing = False
        self._place = place
        self._required = settings.required
        self._sums = Sums(settings.events_per_minute)
        self._retry_s = retry_s
        self._run = secrets.token_hex(4)
        self._number = 0
        self._lost_of: dict[str, int] = {}
        self._files_removed = 0
        self._shout_at_s = 0.0
        self._is_ending = threading.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._lock = threading.Lock()  # for `_number`: the thread has events of its own
        self._writer = LineWriter(self._write, self._lost_line, bytes_max=_QUEUE_BYTES_MAX)

    # --- what is counted

    @property
    def events_written(self) -> int:
        """Events that were written."""
        return self._writer.written

    @property
    def events_lost(self) -> int:
        """Events that were not written, and will not be."""
        return self._writer.dropped

    @property
    def events_summed(self) -> int:
        """Events that were only counted, because their user had too many."""
        return self._sums.summed

    @property
    def waiting_bytes(self) -> int:
        """Bytes of events that wait to be written."""
        return self._writer.held_bytes

    @property
    def files_removed(self) -> int:
        """Older files that were removed."""
        return self._files_removed

    # --- events

    def note(self, event: AuditEvent, payer: str) -> None:
        """Take an event. It counts for `payer`: a user, `NOBODY`, or "", the process itself, which may use the whole
        queue."""
        now = now_us()
        if payer and not self._sums.admits(payer, event.event, event.reason or event.act, now):
            if self._timer is None:
                self._timer = asyncio.get_running_loop().call_later(_SUM_S, self._write_sums)
            return
        self._put(event, payer)

    def why_closed(self, user: str) -> str:
        """Return why no connection of the user may begin, or an empty string: without [audit] required = true, it is
        always empty."""
        if not self._required:
            return ""
        if self.is_failing:
            return "the relay cannot write its audit, and must not open a connection without: tell its operator"
        if not self._writer.fits(_ROOM_BYTES, user):
            return "the relay's audit has no room for another connection of this user: try again later"
        return ""

    async def close(self) -> None:
        """Write what waits, for at most 5 s, and end."""
        if self._timer is not None:
            self._timer.cancel()
        self._put_sums(is_end=True)
        self._is_ending.set()
        is_written = await asyncio.get_running_loop().run_in_executor(None, self._writer.close, _CLOSE_S)
        if is_written:
            self._place.close()
        if not is_written or self._writer.dropped:
            _log.error("audit_lost", events=self._writer.dropped, all_written=is_written, text="events were lost")

    # --- inside

    def _put(self, event: AuditEvent, payer: str) -> None:
        if not self._writer.put(self._line(event), payer):
            if not self._lost_of:
                text = "its queue is full: the disk is too slow, or cannot be written to"
                _log.error("audit_loses", user=payer, text=f"events of the audit are lost: {text}")
            self._lost_of[payer] = self._lost_of.get(payer, 0) + 1

    def _line(self, event: AuditEvent) -> bytes:
        with self._lock:
            self._number += 1
            number = self._number
        event = msgspec.structs.replace(
            event,
            time=time_text(time.time_ns() // 1000),
            run=self._run,
            number=number,
            text=event.text[:TEXT_LETTERS_MAX],
            endpoint=event.endpoint[:TEXT_LETTERS_MAX],
            target=event.target[:TEXT_LETTERS_MAX],
        )
        return encode_event(event)

    def _write_sums(self) -> None:
        self._timer = None
        self._put_sums(is_end=False)
        if self._sums.is_counting:
            self._timer = asyncio.get_running_loop().call_later(_SUM_S, self._write_sums)

    def _put_sums(self, *, is_end: bool) -> None:
        now, wall_us = now_us(), time.time_ns() // 1000
        for payer, found in self._sums.take(now, is_end=is_end):
            user = "" if payer == NOBODY else payer
            since = time_text(wall_us - (now - found.since_us))
            self._put(AuditEvent(event=Kind.EVENTS_SUMMED, user=user, counts=found.counts, since=since), payer)

    # --- run by the thread

    def _write(self, data: bytes) -> None:
        """Write the lines, and try again until that succeeds or the process ends."""
        while True:
            try:
                self._place.write(data)
                break
            except OSError as error:
                self._has_failed(error)
                if self._is_ending.wait(0 if self._is_ending.is_set() else self._retry_s):
                    self._place.give_up()
                    raise
        if self.is_failing:
            self.is_failing = False
            _log.warning("audit_written", lost=self._writer.dropped, text="the audit can be written to again")
        self._report_removed()

    def _has_failed(self, error: OSError) -> None:
        self.failures += 1
        now = time.monotonic()
        if not self.is_failing or now >= self._shout_at_s:
            self._shout_at_s = now + _SHOUT_S
            effect = (
                "no connection is opened until it can" if self._required else "events are lost when its queue is full"
            )
            _log.error(
                "audit_not_written",
                error=error.strerror or str(error),
                waiting_bytes=self._writer.held_bytes,
                lost=self._writer.dropped,
                text=f"events of the audit cannot be written: {effect}",
            )
        self.is_failing = True

    def _report_removed(self) -> None:
        while self._place.removed:
            removed = self._place.removed.pop(0)
            self._files_removed += 1
            text = f"older than the newest files; it had the events from {removed.first} to {removed.last}"
            _log.warning("audit_file_removed", file=removed.name, text=text)
            self._writer.put(self._line(AuditEvent(event=Kind.FILE_REMOVED, file=removed.name, text=text)))

    def _lost_line(self, count: int) -> bytes:
        """Return the event that reports lost events."""
        lost, self._lost_of = self._lost_of, {}
        most = sorted(lost.items(), key=lambda one: -one[1])[:_USERS_NAMED_MAX]
        counts = {"events": count} | {f"user {user}": number for user, number in most}
        return self._line(AuditEvent(event=Kind.EVENTS_LOST, counts=counts))
