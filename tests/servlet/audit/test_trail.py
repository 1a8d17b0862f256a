"""The trail never waits, keeps users apart, counts what is lost, and writes what it can as soon as it can."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from structlog.testing import capture_logs

from tests.servlet.rig import until
from tests.support.loops import in_loop
from tunnel_servlet.audit.event import TEXT_LETTERS_MAX, AuditEvent, Kind, decode_event
from tunnel_servlet.audit.places import Place, Removed
from tunnel_servlet.audit.sums import NOBODY
from tunnel_servlet.audit.trail import Trail
from tunnel_servlet.settings import AuditSettings

SOON_S = 0.001


class Disk(Place):
    """A place that works, hangs or fails, as the test says."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[bytes] = []
        self.error: OSError | None = None
        self.works = threading.Event()
        self.works.set()
        self.given_up = 0

    def write(self, data: bytes) -> None:
        self.works.wait()
        if self.error is not None:
            raise self.error
        self.lines += data.splitlines(keepends=True)

    def give_up(self) -> None:
        self.given_up += 1

    def events(self, kind: Kind | None = None) -> list[AuditEvent]:
        found = [event for event in map(decode_event, self.lines) if event is not None]
        assert len(found) == len(self.lines)
        return [event for event in found if kind in (None, event.event)]


@asynccontextmanager
async def trail(disk: Disk, **settings: Any) -> AsyncIterator[Trail]:
    found = Trail(disk, AuditSettings(**settings), retry_s=SOON_S)
    try:
        yield found
    finally:
        disk.works.set()
        await found.close()


def refused(user: str, text: str = "") -> AuditEvent:
    return AuditEvent(event=Kind.CONNECTION_REFUSED, user=user, text=text, reason="denied")


def allowed(user: str, text: str = "") -> AuditEvent:
    return AuditEvent(event=Kind.CONNECTION_ALLOWED, user=user, text=text)


FULL = OSError(28, "No space left on device")


@in_loop
async def test_events_are_written_in_order_with_time_run_and_number() -> None:
    disk = Disk()
    async with trail(disk) as found:
        for user in ("ann", "bob"):
            found.note(allowed(user), user)
    first, second = disk.events()
    assert (first.user, first.number, second.user, second.number) == ("ann", 1, "bob", 2)
    assert first.run == second.run != ""
    assert first.time <= second.time
    assert found.events_written == 2


@in_loop
async def test_what_a_peer_has_chosen_is_cut_to_a_length() -> None:
    disk = Disk()
    async with trail(disk) as found:
        found.note(AuditEvent(event=Kind.ADMIN, text="x" * 9999, target="y" * 9999, endpoint="z" * 9999), "")
    assert len(disk.lines[0]) < 3 * TEXT_LETTERS_MAX + 200


@in_loop
async def test_after_a_full_disk_all_events_are_there_and_the_log_has_said_so_once() -> None:
    disk = Disk()
    disk.error = FULL
    with capture_logs() as logs:
        async with trail(disk) as found:
            for _ in range(5):
                found.note(allowed("ann"), "ann")
            await until(lambda: found.failures > 2)
            assert found.is_failing
            assert not found.why_closed("ann")
            disk.error = None
            await until(lambda: len(disk.lines) == 5)
            await until(lambda: not found.is_failing)
    assert [event.number for event in disk.events()] == [1, 2, 3, 4, 5]
    assert found.events_lost == 0
    said = [(log["event"], log.get("error")) for log in logs]
    assert said == [("audit_not_written", "No space left on device"), ("audit_written", None)]


@in_loop
async def test_with_required_no_connection_is_opened_while_nothing_can_be_written() -> None:
    disk = Disk()
    async with trail(disk, required=True) as found:
        assert found.why_closed("ann") == ""
        disk.error = FULL
        found.note(allowed("ann"), "ann")
        await until(lambda: found.is_failing)
        assert "cannot write its audit" in found.why_closed("ann")
        disk.error = None
        await until(lambda: not found.is_failing)
        assert found.why_closed("ann") == ""


@in_loop
async def test_two_users_one_whose_events_fill_the_queue_takes_no_room_of_the_other() -> None:
    disk = Disk()
    disk.works.clear()
    with capture_logs() as logs:
        async with trail(disk, required=True) as found:
            count = 0
            while not found.events_lost:
                found.note(allowed("ann", "x" * 400), "ann")
                count += 1
            assert "has no room" in found.why_closed("ann")
            assert found.why_closed("bob") == ""
            for _ in range(100):
                found.note(allowed("bob"), "bob")
            assert found.events_lost == 1
            disk.works.set()
            await until(lambda: disk.events(Kind.EVENTS_LOST))
    assert len([event for event in disk.events() if event.user == "bob"]) == 100
    assert len([event for event in disk.events() if event.user == "ann"]) == count - 1
    (lost,) = disk.events(Kind.EVENTS_LOST)
    assert lost.counts == {"events": 1, "user ann": 1}
    assert [log["user"] for log in logs if log["event"] == "audit_loses"] == ["ann"]


@in_loop
async def test_two_users_the_refusals_of_one_beyond_the_limit_are_summed_at_the_end() -> None:
    disk = Disk()
    async with trail(disk, events_per_minute=3) as found:
        for _ in range(1000):
            found.note(refused("ann"), "ann")
        for _ in range(3):
            found.note(refused("bob"), "bob")
        for _ in range(5):
            found.note(AuditEvent(event=Kind.TOKEN_REFUSED, reason="wrong"), NOBODY)
        assert found.events_summed == 999
    assert [event.user for event in disk.events(Kind.CONNECTION_REFUSED)] == ["ann"] * 3 + ["bob"] * 3
    sums = {event.user: event.counts for event in disk.events(Kind.EVENTS_SUMMED)}
    assert sums == {"ann": {"connection_refused denied": 997}, "": {"token_refused wrong": 2}}


@in_loop
async def test_a_removed_file_is_an_event_and_a_warning() -> None:
    disk = Disk()
    disk.removed.append(Removed("audit.jsonl.1", "t1", "t2"))
    with capture_logs() as logs:
        async with trail(disk) as found:
            found.note(allowed("ann"), "ann")
            await until(lambda: found.files_removed)
    (removed,) = disk.events(Kind.FILE_REMOVED)
    assert removed.file == "audit.jsonl.1"
    assert "from t1 to t2" in removed.text
    assert [log["log_level"] for log in logs if log["event"] == "audit_file_removed"] == ["warning"]


@in_loop
async def test_the_end_does_not_wait_for_a_disk_that_stays_full_and_says_what_is_lost() -> None:
    disk = Disk()
    disk.error = FULL
    with capture_logs() as logs:
        found = Trail(disk, AuditSettings(), retry_s=3600)
        found.note(allowed("ann"), "ann")
        await until(lambda: found.is_failing)
        await found.close()
    assert disk.given_up == 1
    assert found.events_lost == 1
    assert logs[-1] == {
        "event": "audit_lost",
        "log_level": "error",
        "events": 1,
        "all_written": True,
        "text": "events were lost",
    }


@in_loop
async def test_no_event_makes_the_loop_wait_for_a_disk_that_hangs() -> None:
    disk = Disk()
    disk.works.clear()
    async with trail(disk) as found:
        for number in range(2000):
            found.note(allowed(f"user{number % 7}"), f"user{number % 7}")
        await asyncio.sleep(0)
        assert disk.lines == []
        assert found.waiting_bytes > 0
    assert len(disk.lines) == 2000
