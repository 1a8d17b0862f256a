"""Rates of users and rules at the switch (PROTOCOL 9.8), on virtual time."""

from dataclasses import dataclass, field
from itertools import pairwise

from tests.servlet.support import MS, REPORTS, SECOND, Peer, Relay, accepted, connect, control, data, kinds
from tunnel.wire import Packet, PacketType, Target, TargetKind, decode_accepted, decode_connect

KIB, MIB = 1 << 10, 1 << 20
OTHER = Target(TargetKind.TCP, "other.internal", 80)


@dataclass
class Rates:
    """The rates of a test, by user and by rule; a rule is the host of a target."""

    users: dict[str, int] = field(default_factory=dict)
    rules: dict[tuple[str, str], int] = field(default_factory=dict)

    def of(self, user: str, target: Target) -> dict[str, int]:
        found = {"": self.users[user]} if user in self.users else {}
        rule = self.rules.get((user, target.host))
        return found if rule is None else {**found, target.host: rule}


class Scene:
    """A switch with rates, an exit, and the clients that a test attaches with `client`."""

    def __init__(self, rates: Rates) -> None:
        self.rates = rates
        self.relay = Relay(rates_of=rates.of)
        self.exit = Peer(self.relay, user="exits", seed=2, is_exit=True).attached()
        self.clients: dict[str, Peer] = {}
        self.arrived: list[tuple[int, Packet]] = []  # packets at the exit, with their times
        self.sequences: dict[int, int] = {}

    def client(self, user: str, seed: int) -> Peer:
        found = self.clients[user] = Peer(self.relay, user=user, seed=seed).attached()
        return found

    def send(self, client: Peer, source: int, *sizes: int) -> None:
        """Send DATA of these sizes from the client to the exit, on a route whose id at the exit is higher by 100."""
        packets = []
        for size in sizes:
            self.sequences[source] = self.sequences.get(source, 100) + 1
            packets.append(data(source, source + 100, self.sequences[source], bytes(size)))
        client.push(*packets)

    def collect(self, microseconds: int, step_us: int = MS) -> None:
        """Let time pass; the exit asks for packets in each millisecond."""
        end = self.relay.now + microseconds
        while self.relay.now < end:
            self.relay.advance(step_us)
            self.arrived += [(self.relay.now, packet) for packet in self.exit.push() if packet.type == PacketType.DATA]

    def sources(self) -> list[int]:
        return [packet.source for _, packet in self.arrived]


def bind(client: Peer, exit_: Peer, initiator: int, acceptor: int) -> None:
    """Bind a route to the exit. An EDGE precedes ACCEPTED if the rate leaves less room than the initial edge."""
    client.push(connect(initiator))
    assert kinds(exit_.push()) == ["CONNECT"]
    exit_.push(accepted(initiator, acceptor))
    assert kinds(client.push())[-1] == "ACCEPTED"
    exit_.push()


def scene_with_ann(rate: int, *routes: int) -> tuple[Scene, Peer]:
    scene = Scene(Rates({"ann": rate}))
    ann = scene.client("ann", 1)
    for number in routes:
        bind(ann, scene.exit, number, number + 100)
    return scene, ann


def test_9_8_a_stream_leaves_at_its_users_rate() -> None:
    scene, ann = scene_with_ann(200 * KIB, 11)
    scene.send(ann, 11, *[4000] * 24)
    scene.collect(500 * MS)
    times = [at for at, _ in scene.arrived]
    assert len(times) == 24
    assert 0.38 * SECOND < times[-1] - times[0] < 0.48 * SECOND
    gaps = [later - earlier for earlier, later in pairwise(times[3:])]
    assert max(gaps) <= 22 * MS


def test_9_8_each_direction_has_the_whole_rate() -> None:
    scene, ann = scene_with_ann(200 * KIB, 11)
    scene.send(ann, 11, *[4000] * 12)
    answers = scene.exit.push(*(data(111, 11, 501 + number, bytes(4000)) for number in range(12)))
    scene.arrived += [(scene.relay.now, packet) for packet in answers]
    began, found = scene.relay.now, list[int]()
    while len(found) < 12 or len(scene.arrived) < 12:
        scene.collect(MS)
        found += [scene.relay.now for packet in ann.push() if packet.type == PacketType.DATA]
        assert scene.relay.now - began < SECOND
    assert found[-1] - began > 0.15 * SECOND
    waits = {(each.user, each.direction): each.waited_ms for each in scene.relay.switch.rate_waits(scene.relay.now)}
    assert waits["ann", "up"] > 100
    assert waits["ann", "down"] > 100


def test_9_8_connections_of_a_user_share_the_rate_and_a_small_one_does_not_wait() -> None:
    scene, ann = scene_with_ann(400 * KIB, 11, 12, 13)
    scene.send(ann, 11, *[8000] * 20)
    scene.send(ann, 12, *[1000] * 160)
    scene.collect(200 * MS)
    by_bytes = [sum(len(each.payload) for _, each in scene.arrived if each.source == source) for source in (11, 12)]
    assert abs(by_bytes[0] - by_bytes[1]) <= 16_000
    began = scene.relay.now
    scene.send(ann, 13, 50)
    scene.collect(25 * MS)
    assert next(at for at, packet in scene.arrived if packet.source == 13) - began <= 20 * MS


def test_9_8_another_user_does_not_wait() -> None:
    scene, ann = scene_with_ann(64 * KIB, 11)
    bob = scene.client("bob", 3)
    bind(bob, scene.exit, 21, 121)
    scene.send(ann, 11, *[4000] * 24)
    scene.send(bob, 21, *[4000] * 24)
    scene.collect(2 * MS)
    assert scene.sources().count(21) == 24
    assert 1 <= scene.sources().count(11) <= 3


def test_9_8_a_limited_stream_may_queue_half_a_second_at_most() -> None:
    scene, ann = scene_with_ann(64 * KIB, 11)
    queue = next(iter(scene.exit.relay.switch._registry.by_id[scene.exit.identity].legs.values())).queue
    assert queue.limit() == 32 * KIB
    scene.send(ann, 11, *[4000] * 40)
    assert queue.data_bytes <= 33 * KIB
    assert scene.relay.counters.packets_dropped_full > 0  # it sent beyond the edge, which an endpoint does not do


def test_9_8_a_rule_has_a_rate_of_its_own_beside_the_users() -> None:
    rates = Rates({"ann": 400 * KIB}, {("ann", OTHER.host): 40 * KIB})
    scene = Scene(rates)
    ann = scene.client("ann", 1)
    bind(ann, scene.exit, 11, 111)
    ann.push(connect(12, target=OTHER))
    scene.exit.push()
    scene.exit.push(accepted(12, 112))
    ann.push()
    scene.send(ann, 11, *[4000] * 15)
    scene.send(ann, 12, *[4000] * 4)
    scene.collect(250 * MS)
    assert scene.sources().count(11) == 15
    assert 2 <= scene.sources().count(12) <= 3  # 250 ms at 40 KiB/s, and what may leave at once
    rules = {(each.rule, each.bytes_per_second) for each in scene.relay.switch.rate_waits(scene.relay.now)}
    assert rules == {("", 400 * KIB), (OTHER.host, 40 * KIB)}


def served_by_ann(rates: Rates) -> tuple[Scene, Peer, Peer]:
    """Let ann offer a service, and connect bob to it: bob's id is 11, and ann's is 111."""
    scene = Scene(rates)
    ann, bob = scene.client("ann", 1), scene.client("bob", 3)
    ann.listen()
    bob.push(connect(11, target=REPORTS))
    assert kinds(ann.push()) == ["CONNECT"]
    ann.push(accepted(11, 111))
    assert kinds(bob.push())[-1] == "ACCEPTED"
    ann.push()
    return scene, ann, bob


def time_of_all(scene: Scene, sender: Peer, receiver: Peer, source: int, destination: int, count: int) -> int:
    """Send `count` packets of 4,000 bytes. Return the time until the last one has arrived."""
    sender.push(*(data(source, destination, 501 + number, bytes(4000)) for number in range(count)))
    began, found = scene.relay.now, 0
    while found < count:
        scene.relay.advance(MS)
        found += kinds(receiver.push()).count("DATA")
        assert scene.relay.now - began < 5 * SECOND
    return scene.relay.now - began


def test_9_8_the_rate_of_the_user_who_serves_holds_as_that_of_the_one_who_connects() -> None:
    for user in ("ann", "bob"):
        scene, ann, bob = served_by_ann(Rates({user: 100 * KIB}))
        assert time_of_all(scene, ann, bob, 111, 11, 12) > 0.3 * SECOND
        directions = {each.direction for each in scene.relay.switch.rate_waits(scene.relay.now) if each.waited_ms}
        assert directions == {"up" if user == "ann" else "down"}


def test_9_8_of_two_rates_the_lower_one_decides() -> None:
    scene, ann, bob = served_by_ann(Rates({"ann": 400 * KIB, "bob": 100 * KIB}))
    assert 0.3 * SECOND < time_of_all(scene, ann, bob, 111, 11, 12) < 0.6 * SECOND


def test_9_8_a_new_rate_holds_for_open_connections() -> None:
    scene, ann = scene_with_ann(64 * KIB, 11)
    scene.send(ann, 11, *[4000] * 8)
    scene.collect(10 * MS)
    before = len(scene.arrived)
    assert 0 < before < 3
    scene.rates.users["ann"] = 10 * MIB
    review(scene)
    scene.collect(20 * MS)
    assert len(scene.arrived) == 8


def test_9_8_a_removed_rate_holds_no_packets_back_and_an_added_one_does() -> None:
    scene, ann = scene_with_ann(64 * KIB, 11)
    scene.send(ann, 11, *[4000] * 8)
    scene.collect(10 * MS)
    del scene.rates.users["ann"]
    review(scene)
    scene.collect(MS)
    assert len(scene.arrived) == 8
    scene.send(ann, 11, *[4000] * 4)  # they wait when the rate is added
    scene.rates.users["ann"] = 64 * KIB
    review(scene)
    scene.collect(5 * MS)
    assert 8 < len(scene.arrived) < 12
    scene.collect(SECOND)
    assert len(scene.arrived) == 12


def review(scene: Scene) -> None:
    class Allowed:
        def has_user(self, user: str) -> bool:
            return True

        def is_exit(self, user: str) -> bool:
            return True

        def authorise(self, user: str, target: Target) -> object:
            return scene.relay.switch._openings._authorise(user, target)

        def may_listen(self, user: str, name: str) -> bool:
            return True

    for _ in scene.relay.switch.review(Allowed(), lambda: scene.relay.now):  # type: ignore[arg-type]
        scene.relay.settle()


def test_9_8_control_packets_do_not_wait_but_they_are_paid_for() -> None:
    scene, ann = scene_with_ann(64 * KIB, 11)
    scene.send(ann, 11, *[4000] * 8)
    scene.collect(MS)
    ann.push(control(PacketType.PING, 11, 111))
    assert "PING" in kinds(scene.exit.push())
    got = 0
    for _ in range(1000):  # without the limit, 7 packets of 2 KB in each millisecond would pass
        ann.push(*(control(200 + number, 11, 111, bytes(2000)) for number in range(7)))
        got += sum(len(packet.payload) for packet in scene.exit.push() if packet.type >= 200)
        scene.relay.advance(MS)
    assert 48 * KIB < got < 112 * KIB


def test_9_8_packets_of_a_lost_answer_are_sent_again() -> None:
    scene, ann = scene_with_ann(400 * KIB, 11)
    scene.send(ann, 11, *[4000] * 3)
    lost = scene.exit.send()  # this answer does not arrive
    assert lost in scene.relay.responses
    scene.collect(200 * MS)
    assert sorted(packet.sequence for _, packet in scene.arrived) == [101, 102, 103]


def test_9_8_a_connection_that_ends_while_it_waits_frees_its_bytes() -> None:
    scene, ann = scene_with_ann(64 * KIB, 11, 12)
    scene.send(ann, 11, *[4000] * 8)
    ann.push(control(PacketType.ABORT, 11, 111))
    scene.exit.push(control(PacketType.ABORT, 111, 11))
    scene.send(ann, 12, 4000)
    scene.collect(500 * MS)
    ann.push()
    ann.push()
    assert 12 in scene.sources()
    assert scene.relay.switch.stats().bytes_held == 0


def test_9_8_a_rate_limits_the_size_of_packets() -> None:
    scene = Scene(Rates({"ann": MIB}))
    ann = scene.client("ann", 1)
    ann.push(connect(11, packet_bytes_max=512 * KIB))
    (asked,) = scene.exit.push()
    found = decode_connect(asked.payload)
    assert found is not None
    assert found.options.packet_bytes_max == MIB // 33
    scene.exit.push(accepted(11, 111))
    (answer,) = ann.push()
    taken = decode_accepted(answer.payload)
    assert taken is not None
    assert taken.options.packet_bytes_max == MIB // 33


def test_9_8_a_smaller_packet_size_stays() -> None:
    scene = Scene(Rates({"ann": MIB}))
    ann = scene.client("ann", 1)
    ann.push(connect(11, packet_bytes_max=2000))
    (asked,) = scene.exit.push()
    found = decode_connect(asked.payload)
    assert found is not None
    assert found.options.packet_bytes_max == 2000


def test_9_8_paces_of_users_who_left_are_forgotten() -> None:
    scene, _ = scene_with_ann(MIB, 11)
    pacing = scene.relay.switch._context.pacing
    assert len(pacing.waits(0)) == 2
    pacing.forget_unused({"ann"})
    assert len(pacing.waits(0)) == 2
    pacing.forget_unused(set())
    assert pacing.waits(0) == []
