"""Points of the lines, and rates of connections: samples of what the switch counts, while somebody looks."""

from __future__ import annotations

from tests.servlet.support import FORBIDDEN, SECOND, Peer, Relay, bind, bound, connect, data
from tests.support.loops import in_loop
from tunnel_servlet.web.live.watch import Watch


class Scene:
    """A switch with one open connection, and a watch on it."""

    def __init__(self) -> None:
        self.relay = Relay()
        self.client, self.exit = bound(self.relay)
        self.watch = Watch(self.relay.switch, lambda: self.relay.now)
        self.sequence = 101

    def send(self, size: int) -> None:
        self.client.push(data(11, 22, self.sequence, bytes(size)))
        self.exit.push()
        self.sequence += 1

    async def after(self, seconds: int) -> None:
        self.relay.now += seconds * SECOND
        await self.watch.look()


@in_loop
async def test_a_point_holds_what_happened_since_the_last_one() -> None:
    scene = Scene()
    scene.watch.join()
    await scene.watch.look()
    assert not scene.watch.points
    scene.send(1000)
    bind(scene.client, scene.exit, 12, 23)
    scene.client.push(connect(13, target=FORBIDDEN))
    scene.client.push(data(99, 98, 1))  # no such connection
    await scene.after(2)
    (point,) = scene.watch.points
    assert (point.connections, point.opened, point.refused, point.lost, point.taken_back) == (2, 0.5, 0.5, 0.5, 0)
    assert point.bytes_in > 500
    assert point.bytes_out > 500
    assert point.round_trip_ms is None
    await scene.after(2)
    point = scene.watch.points[-1]
    assert (point.bytes_in, point.bytes_out, point.opened, point.lost) == (0, 0, 0, 0)


@in_loop
async def test_connections_have_rates() -> None:
    scene = Scene()
    scene.watch.join()
    await scene.watch.look()
    scene.send(1000)
    await scene.after(4)
    assert scene.watch.rates == {1: (250, 0)}
    bind(scene.client, scene.exit, 12, 23)
    scene.relay.now += SECOND
    scene.client.push(data(12, 23, 101, bytes(300)))
    scene.exit.push()
    await scene.after(2)
    assert scene.watch.rates == {1: (0, 0), 2: (100, 0)}  # a new one since it began


@in_loop
async def test_all_who_look_at_the_same_time_share_a_sample() -> None:
    scene = Scene()
    for _ in range(3):
        scene.watch.join()
    await scene.watch.look()
    await scene.after(2)
    scene.send(1000)
    await scene.after(1)
    await scene.watch.look()
    assert len(scene.watch.points) == 1
    await scene.after(1)
    assert len(scene.watch.points) == 2


@in_loop
async def test_nothing_but_points_is_kept_while_nobody_looks() -> None:
    scene = Scene()
    scene.watch.join()
    scene.watch.join()
    await scene.watch.look()
    await scene.after(2)
    scene.watch.leave()
    assert scene.watch.rates
    scene.watch.leave()
    assert (scene.watch.rates, len(scene.watch.points), scene.watch.lookers) == ({}, 1, 0)
    scene.send(100_000)
    scene.watch.join()
    await scene.after(3600)
    assert len(scene.watch.points) == 1  # an hour is no point
    await scene.after(2)
    assert scene.watch.points[-1].bytes_in == 0


@in_loop
async def test_the_points_are_bounded() -> None:
    scene = Scene()
    scene.watch.join()
    for _ in range(310):
        await scene.after(2)
    assert len(scene.watch.points) == 300


@in_loop
async def test_round_trips_are_those_of_links_on_which_receipts_came() -> None:
    relay = Relay()
    watch = Watch(relay.switch, lambda: relay.now)
    peers = [Peer(relay, "ann", seed).attached() for seed in range(1, 41)]
    exit_ = Peer(relay, "exits", 99, is_exit=True).attached()
    for number, peer in enumerate(peers, 1):
        bind(peer, exit_, number, 100 + number)
        assert relay.switch.link_opened(number, "ann", peer.identity, peer.epoch, peer.generation, relay.now)
    watch.join()
    await watch.look()
    began = relay.now
    for number, _ in enumerate(peers, 1):
        exit_.push(data(100 + number, number, 501))
        assert relay.switch.poll_link(number, 1 << 20, began)
    for number, _ in enumerate(peers, 1):
        relay.switch.link_receipted(number, 1, began + number * 1000)
    relay.now = began + 2 * SECOND
    await watch.look()
    assert (watch.points[-1].round_trip_ms, watch.points[-1].slow_round_trip_ms) == (20.5, 38)
    relay.now += 2 * SECOND
    await watch.look()
    assert (watch.points[-1].round_trip_ms, watch.points[-1].slow_round_trip_ms) == (None, None)


@in_loop
async def test_connections_that_have_ended_have_no_rates() -> None:
    scene = Scene()
    scene.watch.join()
    await scene.watch.look()
    operator = scene.relay.switch.operator
    operator.kick_connection(operator.connections()[0], scene.relay.now)
    await scene.after(2)
    assert scene.watch.rates == {}
    assert scene.watch.points[-1].connections == 0
