"""The pump, its one timer, and the handlers of events, with a carrier that the test operates by hand."""

import asyncio
import time
from collections import deque
from random import Random

import pytest
from msgspec import structs

from tests.support.loops import in_loop
from tunnel.carriers import Host
from tunnel.clock import now_us
from tunnel.core import ConnectRequested, EndpointConfig, Event, Incoming, Refused
from tunnel.core.constants import NEVER_US
from tunnel.driver import Driver, StatusEvent
from tunnel.exchange import (
    AttachedEvent,
    AttachRefused,
    BatchDone,
    Detached,
    LaneEvent,
    LanesChanged,
    PacketsReceived,
    Recovered,
    Troubled,
)
from tunnel.wire import (
    Option,
    Options,
    Packet,
    PacketType,
    Rejected,
    RejectReason,
    Target,
    TargetKind,
    decode_connect,
    decode_option,
    encode_option,
    encode_rejected,
)

SERVICE = Target(TargetKind.SERVICE, "s")
ATTACHED = AttachedEvent(1, True, 1 << 20, 1 << 18, 0)


class HandCarrier:
    """A carrier that records the batches it takes and reports the events that the test gives it."""

    attachment_id = bytes(16)
    description = "by hand"
    failure = ""
    round_trip_us = 0
    pull_interval_us = 0

    def __init__(self) -> None:
        self.events: deque[LaneEvent] = deque()
        self.pushed: list[tuple[list[Packet], int]] = []
        self.room_bytes = 1 << 16
        self.due_us: int | None = None
        self.timeouts: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_closed = False
        self.settled: list[tuple[int, int]] = []

    def start(self, host: Host) -> None:
        self.host = host

    def room(self, now: int) -> int:
        return self.room_bytes

    def push(self, packets: list[Packet], token: int, now: int) -> None:
        self.pushed.append((packets, token))

    def advance(self, now: int) -> bool:
        return False

    def next_timeout(self) -> int | None:
        return self.due_us

    def handle_timeout(self, now: int) -> None:
        self.due_us = None
        self.timeouts.set_result(now)

    def poll_event(self) -> LaneEvent | None:
        return self.events.popleft() if self.events else None

    def set_pull_interval(self, settled_us: int, *, wanted_us: int) -> None:
        self.settled.append((settled_us, wanted_us))

    async def prepared(self) -> None: ...

    async def close(self) -> None:
        self.is_closed = True

    def tell(self, *events: LaneEvent) -> None:
        self.events += events
        self.host.pump()


class Audience:
    """Records every call that it receives."""

    def __init__(self) -> None:
        self.told: list[object] = []

    def incoming(self, event: Incoming) -> None:
        self.told.append(event)

    def asked(self, event: ConnectRequested) -> None:
        self.told.append(event)

    def status(self, event: StatusEvent) -> None:
        self.told.append(event)

    def trouble(self, text: str, *, final: bool) -> None:
        self.told.append((text, final))

    def buffered(self, size_bytes: int) -> None:
        self.told.append(("buffered", size_bytes))

    def wrote(self, size_bytes: int) -> None:
        self.told.append(("wrote", size_bytes))


def make(**settings: object) -> tuple[Driver, HandCarrier, Audience]:
    carrier, audience = HandCarrier(), Audience()
    driver = Driver(carrier, audience, EndpointConfig(**settings), Random(1))  # type: ignore[arg-type]
    driver.start()
    return driver, carrier, audience


@in_loop
async def test_packets_of_one_loop_turn_leave_in_one_batch() -> None:
    driver, carrier, audience = make()
    for _ in range(3):
        driver.endpoint.connect(SERVICE, driver.now())
        driver.wake()
    assert carrier.pushed == []
    await asyncio.sleep(0)
    ((packets, _),) = carrier.pushed
    assert [packet.type for packet in packets] == [PacketType.CONNECT] * 3
    assert audience.told == [("buffered", sum(packet.size for packet in packets))]
    await driver.close()
    assert carrier.is_closed


@in_loop
async def test_without_room_everything_waits_until_the_carrier_pumps() -> None:
    driver, carrier, _ = make()
    carrier.room_bytes = 0
    driver.endpoint.connect(SERVICE, driver.now())
    driver.pump()
    assert carrier.pushed == []
    carrier.room_bytes = 1 << 16
    carrier.host.pump()
    assert len(carrier.pushed) == 1
    await driver.close()


@in_loop
async def test_events_go_to_the_registered_handler_until_it_unregisters() -> None:
    driver, carrier, _ = make()
    heard: list[Event] = []
    connections = [driver.endpoint.connect(SERVICE, driver.now()) for _ in range(2)]
    for connection in connections:
        driver.register(connection.id, heard.append)
    driver.unregister(connections[1].id)
    driver.pump()
    ((packets, token),) = carrier.pushed
    answers = []
    for packet in packets:
        connect = decode_connect(packet.payload)
        assert connect is not None
        payload = encode_rejected(Rejected(connect.route_key, RejectReason.BUSY, "no"))
        answers.append(Packet(PacketType.REJECTED, packet.source, 0, 0, payload))
    carrier.round_trip_us = 2_000_000
    carrier.tell(BatchDone(token, ok=True), PacketsReceived(answers, None))
    assert driver.endpoint.carrier.round_trip_us == 2_000_000  # windows grow in proportion to it
    assert heard == [Refused(connections[0].id, RejectReason.BUSY, "no")]
    await driver.close()


@in_loop
async def test_4_15_the_relay_counts_as_absent_while_it_does_not_answer() -> None:
    driver, carrier, audience = make()
    view = driver.endpoint.carrier
    carrier.tell(ATTACHED, LanesChanged(3, 5000))
    assert driver.attached
    assert (view.absent_since_us, view.lanes, view.pull_interval_us) == (NEVER_US, 3, 5000)
    assert view.packet_bytes_max == 1 << 20
    carrier.tell(Troubled(3, "reset"))
    assert view.absent_since_us < NEVER_US
    carrier.tell(Recovered())
    assert view.absent_since_us == NEVER_US
    carrier.tell(Detached())
    assert not driver.attached
    carrier.tell(Recovered())  # the relay answers, but does not know this attachment yet
    assert view.absent_since_us < NEVER_US
    carrier.tell(ATTACHED)
    assert view.absent_since_us == NEVER_US
    carrier.tell(AttachRefused(401, 0, "no"))
    assert not driver.attached
    assert [type(event) for event in audience.told] == [
        AttachedEvent,
        Troubled,
        Recovered,
        Detached,
        Recovered,
        AttachedEvent,
        AttachRefused,
    ]
    await driver.close()


@pytest.mark.interpreted  # it replaces a method of Endpoint
@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="nothing else knows of a sleep here")
@pytest.mark.parametrize(
    ("both_ran_s", "naps_s", "is_moved"),
    [(130, (0,), True), (130, (240,), False), (130, (129,), True), (130, (60, 71), False), (0, (0,), False)],
)
@in_loop
async def test_6_3_a_relay_that_may_have_been_restarted_during_a_sleep_is_no_other_one(
    monkeypatch: pytest.MonkeyPatch, both_ran_s: int, naps_s: tuple[int, ...], *, is_moved: bool
) -> None:
    driver, carrier, audience = make()
    moves: list[bool] = []
    monkeypatch.setattr(driver.endpoint, "attached", lambda *_, moved, **__: moves.append(moved))
    slept_s = 0.0
    read = time.clock_gettime
    monkeypatch.setattr(time, "clock_gettime", lambda clock: read(clock) + slept_s)
    slept_s = 1000.0
    carrier.tell(ATTACHED)  # what the machine slept before does not count
    for nap_s in naps_s:
        slept_s += nap_s
        carrier.tell(Troubled(3, "reset"))
        carrier.tell(Recovered())
    carrier.tell(Detached(), structs.replace(ATTACHED, epoch=2, both_ran_us=both_ran_s * 1_000_000))
    assert moves[-1] == is_moved
    *_, last = audience.told
    assert isinstance(last, AttachedEvent)
    assert bool(last.both_ran_us) == is_moved  # a move is logged
    carrier.tell(Detached(), structs.replace(ATTACHED, epoch=3, both_ran_us=1_000_000))
    assert moves[-1]  # the sleep before the last attach counts no more
    await driver.close()


@in_loop
async def test_the_timer_moves_when_the_carrier_is_due_earlier() -> None:
    driver, carrier, _ = make()
    carrier.due_us = now_us() + 60_000_000
    driver.pump()
    due_us = carrier.due_us = now_us() + 5_000
    driver.pump()
    assert await carrier.timeouts >= due_us
    await driver.close()


@in_loop
async def test_quiet_means_that_every_batch_is_at_the_relay() -> None:
    driver, carrier, _ = make()
    await driver.quiet()
    driver.endpoint.listen("s", 1, driver.now())
    driver.wake()
    quiet = asyncio.create_task(driver.quiet())
    await asyncio.sleep(0)
    given_up = asyncio.create_task(driver.quiet())
    await asyncio.sleep(0)
    given_up.cancel()
    await asyncio.sleep(0)
    assert not quiet.done()
    ((_, token),) = carrier.pushed
    carrier.tell(BatchDone(token, ok=True))
    await quiet
    driver.endpoint.unlisten("s", driver.now())
    last = asyncio.create_task(driver.quiet())
    driver.wake()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    await driver.close()
    await last
    assert driver.unreceipted == 1
    driver.pump()
    driver.wake()


@in_loop
async def test_reports_of_the_carrier_are_passed_on() -> None:
    driver, carrier, audience = make()
    carrier.host.wrote(7)
    carrier.host.trouble("reset")
    carrier.host.trouble("certificate", final=True)
    assert audience.told == [("wrote", 7), ("reset", False), ("certificate", True)]
    await driver.close()


@in_loop
async def test_the_pump_goes_on_after_a_handler_raised() -> None:
    driver, carrier, _ = make()
    connection = driver.endpoint.connect(SERVICE, driver.now())

    def fail(event: Event) -> None:
        raise LookupError("a mistake")

    driver.register(connection.id, fail)
    connection.abort(driver.now())
    with pytest.raises(LookupError):
        driver.pump()
    driver.endpoint.connect(SERVICE, driver.now())
    driver.pump()
    assert len(carrier.pushed) == 1
    await driver.close()


@in_loop
async def test_the_carrier_hears_on_which_pull_interval_the_relay_settled() -> None:  # 2.7
    driver, carrier, _ = make()
    carrier.tell(ATTACHED)
    driver.endpoint.attachment_options.ask(200, driver.now())
    driver.pump()
    (packet,) = [packet for packets, _ in carrier.pushed for packet in packets]
    assert decode_option(packet.payload) == Option(1, Options(pull_interval_ms=200))
    answer = Packet(PacketType.OPTION, 0, 0, 0, encode_option(Option(1, Options(pull_interval_ms=500))))
    carrier.tell(PacketsReceived([answer], None), PacketsReceived([answer], None))
    assert carrier.settled == [(500_000, 200_000)]
    await driver.close()
