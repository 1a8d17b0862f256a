"""The pump, its one timer, and the handlers of events, with a carrier that the test operates by hand."""

import asyncio
import time
from collections import deque
from random import Random

import pytest
from msgspec import structs

from tests.support.loops import in_loop
from tunnel.carriers import Host
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
from tunnel.system.clock import now_us
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
    relay = "hand"
    failure = ""
    round_trip_us = 0
    pull_interval_us = 0

    def __init__(self) -> None:
        self.events: deque[LaneEvent] = deque()
        self.pushed: list[tuple[list[Packet], int]] = []
        self.room_bytes = 1 << 16
        self.due_us: int | None = None
        self.asked = 0  # how often it was asked for its due time
        self.advanced = 0
        self.pushes_wait = False  # for `advance`
        self.timeouts: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self.is_closed = False
        self.settled: list[tuple[int, int]] = []

    def start(self, host: Host) -> None:
        self.host = host

    @property
    def has_events(self) -> bool:
        return bool(self.events)

    def room(self, now: int) -> int:
        return self.room_bytes

    def push(self, packets: list[Packet], token: int, now: int) -> bool:
        self.pushed.append((packets, token))
        return self.pushes_wait

    def advance(self, now: int) -> bool:
        self.advanced += 1
        return False

    def next_timeout(self) -> int | None:
        self.asked += 1
        return self.due_us

    def handle_timeout(self, now: int) -> None:
        self.due_us = None
        self.timeouts.set_result(now)

    def poll_event(self) -> LaneEvent | None:
        return self.events.popleft() if self.events else None

    def set_pull_interval(self, settled_us: int, *, wanted_us: int) -> None:
        self.settled.append((settled_us, wanted_us))

    async def until_ready(self) -> None: ...

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

    def on_asked(self, event: ConnectRequested) -> None:
        self.told.append(event)

    def status(self, event: StatusEvent) -> None:
        self.told.append(event)

    def trouble(self, text: str, *, final: bool) -> None:
        self.told.append((text, final))

    def increment_out_bytes(self, size_bytes: int) -> None:
        self.told.append(("filled", size_bytes))

    def register_write(self, size_bytes: int) -> None:
        self.told.append(("written", size_bytes))


def make(**settings: object) -> tuple[Driver, HandCarrier, Audience]:
    carrier, audience = HandCarrier(), Audience()
    driver = Driver(carrier, audience, EndpointConfig(**settings), Random(1))  # type: ignore[arg-type]
    driver.statistics = audience
    driver.start()
    return driver, carrier, audience


def rejection(packet: Packet) -> Packet:
    """Return the refusal of a CONNECT."""
    connect = decode_connect(packet.payload)
    assert connect is not None
    payload = encode_rejected(Rejected(connect.route_key, RejectReason.BUSY, "no"))
    return Packet(PacketType.REJECTED, packet.source, 0, 0, payload)


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
    assert audience.told == [("filled", sum(packet.size for packet in packets))]
    await driver.close()
    assert carrier.is_closed


@in_loop
async def test_a_batch_waits_for_what_the_application_adds_in_its_next_turn() -> None:
    driver, carrier, _ = make()

    def answer(event: Event) -> None:
        driver.await_turn()
        asyncio.get_running_loop().call_soon(driver.endpoint.connect, SERVICE, driver.now())

    refused = driver.endpoint.connect(SERVICE, driver.now())
    driver.register(refused.id, answer)
    driver.pump()
    driver.endpoint.connect(SERVICE, driver.now())
    carrier.tell(PacketsReceived([rejection(carrier.pushed[0][0][0])], None))
    assert len(carrier.pushed) == 1
    await asyncio.sleep(0)
    assert [[packet.type for packet in packets] for packets, _ in carrier.pushed[1:]] == [[PacketType.CONNECT] * 2]
    driver.endpoint.connect(SERVICE, driver.now())
    driver.pump()
    assert len(carrier.pushed) == 3  # no later batch waits
    await driver.close()


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
    answers = [rejection(packet) for packet in packets]
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
    assert driver.is_attached
    assert (view.absent_since_us, view.lanes, view.pull_interval_us) == (NEVER_US, 3, 5000)
    assert view.packet_bytes_max == 1 << 20
    carrier.tell(Troubled(3, "reset"))
    assert view.absent_since_us < NEVER_US
    carrier.tell(Recovered())
    assert view.absent_since_us == NEVER_US
    carrier.tell(Detached())
    assert not driver.is_attached
    carrier.tell(Recovered())  # the relay answers, but does not know this attachment yet
    assert view.absent_since_us < NEVER_US
    carrier.tell(ATTACHED)
    assert view.absent_since_us == NEVER_US
    carrier.tell(AttachRefused(401, 0, "no"))
    assert not driver.is_attached
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
    monkeypatch.setattr(driver.endpoint, "on_attached", lambda *_, moved, **__: moves.append(moved))
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
async def test_the_carrier_is_asked_once_after_each_change_and_not_otherwise() -> None:
    driver, carrier, _ = make()

    async def asked(*, after_wake: bool = False) -> tuple[int, int]:
        carrier.asked = carrier.advanced = 0
        if after_wake:
            driver.wake()
            await asyncio.sleep(0)
        return carrier.asked, carrier.advanced

    assert await asked(after_wake=True) == (0, 0)  # nothing has changed since the start
    await asked()
    carrier.host.pump()
    assert (carrier.asked, carrier.advanced) == (1, 1)
    await asked()
    carrier.host.deliver()
    assert (carrier.asked, carrier.advanced) == (1, 0)  # no exchange can start
    driver.endpoint.listen("s", 1, driver.now())
    assert await asked(after_wake=True) == (1, 0)  # a batch was pushed
    assert len(carrier.pushed) == 1
    carrier.pushes_wait = True
    driver.endpoint.listen("t", 1, driver.now())
    assert await asked(after_wake=True) == (1, 1)
    await asked()
    carrier.tell(BatchDone(carrier.pushed[0][1], ok=True))
    assert (carrier.asked, carrier.advanced) == (1, 1)
    carrier.due_us = now_us()
    carrier.host.pump()
    await carrier.timeouts
    assert await asked(after_wake=True) == (0, 0)
    await driver.close()


@in_loop
async def test_a_push_that_makes_an_exchange_due_starts_it() -> None:
    driver, carrier, _ = make()
    driver.endpoint.listen("s", 1, driver.now())
    carrier.due_us = now_us()
    carrier.advanced = 0
    driver.wake()
    await asyncio.sleep(0)
    assert carrier.advanced
    assert carrier.due_us is None  # it was still due afterwards
    await driver.close()


@pytest.mark.interpreted  # it replaces a function that the driver calls
@in_loop
async def test_packets_that_are_due_leave_before_the_carrier_sends_what_they_could_have_carried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    driver, carrier, _ = make()
    driver.endpoint.connect(SERVICE, driver.now())
    driver.pump()
    carrier.due_us = now_us() + 500_000
    carrier.host.pump()
    later_us = now_us() + 2_000_000  # CONNECT is repeated by then
    monkeypatch.setattr("tunnel.driver.now_us", lambda: later_us)
    pushed_before_timeout: list[int] = []
    handle_timeout = carrier.handle_timeout

    def note(now: int) -> None:
        pushed_before_timeout.append(len(carrier.pushed))
        handle_timeout(now)

    carrier.handle_timeout = note  # type: ignore[method-assign]
    driver.wake()
    await asyncio.sleep(0)
    assert pushed_before_timeout == [2]
    await driver.close()


@in_loop
async def test_events_that_a_push_causes_are_handled_in_the_same_pump() -> None:
    driver, carrier, _ = make()
    push = carrier.push

    def push_in_vain(packets: list[Packet], token: int, now: int) -> bool:
        if not carrier.pushed:
            carrier.events.append(BatchDone(token, ok=False))
        return push(packets, token, now)

    carrier.push = push_in_vain  # type: ignore[method-assign]
    driver.endpoint.connect(SERVICE, driver.now())
    driver.pump()
    assert [[packet.type for packet in packets] for packets, _ in carrier.pushed] == [[PacketType.CONNECT]] * 2
    assert driver.unreceipted == 1
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
    assert audience.told == [("written", 7), ("reset", False), ("certificate", True)]
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


@in_loop
async def test_what_is_delivered_leaves_an_exchange_that_is_due_to_its_time() -> None:
    driver, carrier, _ = make()
    driver.endpoint.connect(SERVICE, driver.now())
    driver.pump()
    carrier.advanced = 0
    carrier.events.append(BatchDone(carrier.pushed[0][1], ok=True))
    carrier.host.deliver()
    assert (driver.unreceipted, carrier.advanced) == (0, 0)
    carrier.due_us = now_us()
    carrier.host.deliver()
    assert carrier.advanced
    await driver.close()
