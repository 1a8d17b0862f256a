"""Two machines lose power, and processes die, at any step: one machine has the outboxes, the other the inbox and the
application that reads it.

Whatever happened, each message that an outbox accepted reaches the application once and in order.
"""

import asyncio
import os
from collections.abc import Awaitable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import cast

import pytest

from tests.support.disk import RecordedDisk
from tests.support.loops import in_loop
from tests.support.power import Crash
from tunnel.messages.calls.calls import CallChannel, Request, Response
from tunnel.messages.kept.inbox import Inbox
from tunnel.messages.kept.log import LogConfig
from tunnel.messages.kept.outbox import Outbox, OutboxSender

SMALL = LogConfig(flush_messages=1, flush_s=0.0, segment_bytes=200)
LATE = LogConfig(flush_messages=1_000_000, flush_s=3600.0)
OUTBOXES = ("out-a", "out-b")
ID = b"x" * 16


@pytest.fixture(autouse=True)
def no_real_power_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do not wait for the real disk: the recorded disk knows the content that it would have after a power failure."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda descriptor: None)


class DirectChannel:
    """What a sender needs of a CallChannel, without a connection: a call goes to the handlers of an inbox."""

    is_open = True

    def __init__(self, inbox: Inbox) -> None:
        self._handlers = inbox.handlers

    async def call(
        self,
        code: int,
        body: bytes,
        fields: dict[str, str],
        *,
        timeout: float | None,  # noqa: ASYNC109
    ) -> Response:
        outcome = self._handlers[code](Request(code, body, fields))
        assert isinstance(outcome, Awaitable)
        response = await outcome
        assert response is not None
        return response

    async def wait_closed(self) -> None:
        await asyncio.Event().wait()


def sender(outbox: Outbox, inbox: Inbox) -> OutboxSender:
    async def connect() -> CallChannel:
        return cast("CallChannel", DirectChannel(inbox))

    return OutboxSender(outbox, connect, random=Random(1))


@dataclass
class Told:
    """What the outboxes promised, and what the application has stored: the application's disk never fails."""

    accepted: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTBOXES, 0))
    confirmed: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTBOXES, 0))
    epochs: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTBOXES, 0))
    position: int = 0
    """Up to which offset of the inbox the application has read."""
    taken: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OUTBOXES, 0))
    """How many messages of each outbox it has got."""

    def copy(self) -> "Told":
        return Told(dict(self.accepted), dict(self.confirmed), dict(self.epochs), self.position, dict(self.taken))


def payload(name: str, number: int) -> bytes:
    return f"{name} {number} ".encode() + b"x" * (number * 5 % 40)


class Life:
    """One life of both machines, from the opening of the directories to the next death."""

    def __init__(self, disk: RecordedDisk, told: Told) -> None:
        self.disk = disk
        self.told = told
        self.inbox = Inbox.open(disk.root / "in", SMALL, checkpoint_records=4)
        self.outboxes = {name: Outbox.open(disk.root / name, SMALL) for name in OUTBOXES}
        for name, outbox in self.outboxes.items():
            told.epochs[name] = outbox.epoch
        self.mark()

    def mark(self) -> None:
        self.disk.mark("told", self.told.copy())

    async def put(self, name: str, count: int) -> None:
        outbox = self.outboxes[name]
        first = outbox.log.next_offset
        await outbox.put_many([payload(name, first + index) for index in range(count)])
        self.told.accepted[name] = first + count
        self.mark()

    async def delivered(self, name: str) -> None:
        end = self.told.accepted[name]
        if end:
            await self.outboxes[name].until_delivered(end - 1)
            self.told.confirmed[name] = end
            self.mark()

    def read(self) -> None:
        for record in self.inbox.read(self.told.position, None):
            take(self.told, record.payload)
            self.told.position = record.offset + 1
        self.mark()

    def trim(self) -> None:
        self.inbox.trim(self.told.position)

    def close(self) -> None:
        self.inbox.close()
        for outbox in self.outboxes.values():
            outbox.close()


def take(told: Told, received: bytes) -> None:
    """The application gets a message, which must be the next of its outbox."""
    name = received.split()[0].decode()
    assert received == payload(name, told.taken[name])
    told.taken[name] += 1


def check(place: Path, told: Told) -> None:
    """Open what is left after a death, and check that it keeps every promise."""
    rest = told.copy()
    with Inbox.open(place / "in", SMALL) as inbox:
        for record in inbox.read(rest.position, None):
            take(rest, record.payload)
        for name in OUTBOXES:
            assert rest.taken[name] >= told.confirmed[name], "a message was confirmed, and the receiver has lost it"
            with Outbox.open(place / name, SMALL) as outbox:
                assert outbox.epoch > told.epochs[name]
                assert inbox.next_number(outbox.id) == rest.taken[name]
                assert outbox.log.first_offset <= rest.taken[name] <= outbox.log.end_offset
                assert outbox.log.end_offset >= told.accepted[name], "a message was accepted, and is lost"


async def live(life: Life, random: Random) -> None:
    async with sender(life.outboxes["out-a"], life.inbox), sender(life.outboxes["out-b"], life.inbox):
        for _ in range(random.randrange(2, 8)):
            name = random.choice(OUTBOXES)
            puts = [life.put(each, random.randrange(1, 6)) for each in random.sample(OUTBOXES, random.randrange(1, 3))]
            await asyncio.gather(*puts)
            match random.randrange(4):
                case 0:
                    await life.delivered(name)
                case 1:
                    life.read()
                case 2:
                    life.read()
                    life.trim()


async def one_life(disk: RecordedDisk, told: Told, random: Random) -> None:
    life = Life(disk, told)
    try:
        await live(life, random)
    finally:
        life.close()


@pytest.mark.parametrize("seed", range(16))
@in_loop
async def test_each_message_arrives_once_after_any_deaths(tmp_path: Path, seed: int) -> None:
    random = Random(seed)
    told = Told()
    killed: Crash | None = None
    for _ in range(4):
        with RecordedDisk(tmp_path / "disk", killed=killed) as disk:
            disk.mark("told", told.copy())
            await one_life(disk, told, random)
        steps = len(disk.steps)
        chosen = steps - min(steps, int(random.expovariate(1 / 15)))
        crash = next(crash for crash in disk.crashes() if crash.steps == chosen)
        told = crash.last("told", told).copy()
        # The machines of these directories keep their power, so that only their processes die.
        spared = random.choice((["in", *OUTBOXES], OUTBOXES, ["in"], []))
        state = random.getstate()
        crash.write(tmp_path / "copy", random, spared=spared)
        check(tmp_path / "copy", told)
        random.setstate(state)
        crash.write(tmp_path / "disk", random, spared=spared)
        killed = crash if len(spared) == 3 else None  # no machine lost power: its disk goes on from the crash
    with RecordedDisk(tmp_path / "disk", killed=killed) as disk:
        life = Life(disk, told)
        async with sender(life.outboxes["out-a"], life.inbox), sender(life.outboxes["out-b"], life.inbox):
            for name in OUTBOXES:
                await life.put(name, 1)
                await life.delivered(name)
        life.read()
        life.close()
        assert all(told.taken[name] >= told.accepted[name] for name in OUTBOXES)


@in_loop
async def test_a_power_failure_at_any_step_loses_and_doubles_no_message(tmp_path: Path) -> None:
    with RecordedDisk(tmp_path / "disk") as disk:
        life = Life(disk, Told())
        async with sender(life.outboxes["out-a"], life.inbox), sender(life.outboxes["out-b"], life.inbox):
            for count in (1, 3):
                await asyncio.gather(*(life.put(name, count) for name in OUTBOXES))
                await asyncio.gather(*(life.delivered(name) for name in OUTBOXES))
                life.read()
                life.trim()
        life.close()
    for crash in disk.crashes():
        for spared in ([], OUTBOXES, ["in"]):
            for _ in crash.images(tmp_path / "image", range(1), spared=spared):
                check(tmp_path / "image", crash.last("told", Told()))
