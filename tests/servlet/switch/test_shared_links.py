"""Links that share the load of an attachment, at the relay (PROTOCOL 8.7)."""

from collections import deque
from collections.abc import Iterable
from itertools import pairwise

import pytest

from tests.servlet.support import Peer, Relay, bound, data, frames_of
from tunnel.wire import Packet

KIB = 1024
SECOND = 1_000_000


def shared(relay: Relay, peer: Peer, *links: int) -> None:
    for link in links:
        names = peer.user, peer.identity, peer.epoch, peer.generation
        assert relay.switch.link_opened(link, *names, relay.now, shares=True)
        relay.settle()


def drained(relay: Relay, *, paused: Iterable[int] = ()) -> dict[int, list[int]]:
    """Do as the host: let each link that is signalled take batches, unless it is paused. Return their packets."""
    found: dict[int, list[int]] = {}
    while relay.links_ready:
        link = relay.links_ready.pop(0)
        if link in paused:
            relay.switch.link_is_full(link, relay.now)
        while link not in paused and (frames := relay.switch.poll_link(link, 1 << 20, relay.now)):
            found.setdefault(link, []).extend(frame.sequence for frame in frames)
            relay.settle()
        relay.settle()
    return found


def all_of(found: dict[int, list[int]]) -> list[int]:
    return [sequence for sequences in found.values() for sequence in sequences]


def packets(first: int, count: int, size: int = 8 * KIB) -> list[Packet]:
    return [data(22, 11, first + number, bytes(size)) for number in range(count)]


def test_packets_spread_over_the_links_and_none_is_sent_twice() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2, 3)
    exit_.push(*packets(501, 24))
    found = drained(relay)
    assert sorted(found) == [1, 2, 3]
    assert sorted(all_of(found)) == list(range(501, 525))
    assert max(map(len, found.values())) - min(map(len, found.values())) <= 2
    for link, sequences in found.items():
        assert sequences == sorted(sequences), link


def test_a_lone_packet_leaves_on_the_link_on_which_the_endpoint_sent_last() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2, 3)
    relay.switch.link_packets(2, frames_of(data(11, 22, 101)), relay.now)
    relay.settle()
    for sequence in (501, 502, 503):
        exit_.push(data(22, 11, sequence))
        assert drained(relay) == {2: [sequence]}


def test_a_link_takes_no_more_than_its_window_and_goes_on_with_receipts() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2)
    exit_.push(*packets(501, 31))
    found = drained(relay)
    assert len(all_of(found)) < 31
    assert all(64 * KIB <= 8 * KIB * len(sequences) < 88 * KIB for sequences in found.values())
    left = all_of(found)
    while len(left) < 31:
        relay.now += 10_000
        for link in (1, 2):
            relay.switch.link_receipted(link, 2, relay.now)
            relay.settle()
        later = all_of(drained(relay))
        assert later
        left += later
    assert sorted(left) == list(range(501, 532))


def test_a_paused_link_does_not_hold_up_the_others() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2)
    exit_.push(*packets(501, 6))
    assert drained(relay, paused=[2]) == {1: list(range(501, 507))}
    exit_.push(*packets(507, 1))
    assert relay.switch.poll_link(2, 1 << 20, relay.now)  # it was signalled, and takes bytes again


def test_what_waits_on_a_link_that_stalls_leaves_on_another_when_something_comes() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2)
    exit_.push(*packets(501, 8))
    found = drained(relay)
    relay.now += SECOND - 1
    relay.switch.link_receipted(1, 9, relay.now)
    relay.settle()
    assert drained(relay) == {}
    relay.now += 1
    relay.switch.link_packets(1, frames_of(data(11, 22, 101)), relay.now)
    relay.settle()
    assert drained(relay) == {1: found[2]}
    relay.switch.link_receipted(2, 1, relay.now)  # it was only slow, and carries again
    relay.settle()
    exit_.push(*packets(509, 8))
    assert 2 in drained(relay)


def test_a_lost_link_gives_its_packets_to_the_others() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2)
    exit_.push(*packets(501, 8))
    found = drained(relay)
    relay.switch.link_closed(1, relay.now)
    relay.settle()
    assert drained(relay) == {2: found[1]}
    relay.switch.link_receipted(2, 9, relay.now)
    relay.settle()
    stats = relay.switch.stats()
    assert stats.bytes_outstanding == 0
    relay.switch.check_invariants()


def test_the_links_of_an_attachment_are_limited() -> None:
    relay = Relay(links_per_attachment_max=1, shared_links_per_attachment_max=3)
    client, _ = bound(relay)
    shared(relay, client, 1, 2, 3)
    names = client.user, client.identity, client.epoch, client.generation
    assert not relay.switch.link_opened(4, *names, relay.now, shares=True)
    assert not relay.switch.link_opened(4, *names, relay.now)
    relay.switch.check_invariants()


def test_two_users_one_who_never_sends_receipts_holds_no_more_than_the_windows() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2, 3, 4)
    for first in range(501, 901, 20):
        exit_.push(*packets(first, 20))
        drained(relay)
    assert relay.switch.stats().bytes_outstanding < 4 * 90 * KIB


class SlowPath:
    """Two links whose paths pass so many bytes per second, each in order. Each batch that arrives is receipted.

    The endpoint sends something every half second. `arrived` holds the packets that have come to it.
    """

    def __init__(self, rate: int) -> None:
        self.relay = Relay()
        client, self._exit = bound(self.relay)
        shared(self.relay, client, 1, 2)
        self._pushed = 0
        self.arrived: list[int] = []
        self._rate = rate
        self._paths: dict[int, deque[tuple[int, list[int]]]] = {1: deque(), 2: deque()}

    def run(self, seconds: int) -> "SlowPath":
        """Let this time pass."""
        for tick in range(seconds * 20):
            self._send()
            self.relay.now += SECOND // 20
            for link in self._paths:
                self._arrive(link)
            if not tick % 10:
                self.relay.switch.link_packets(1, [], self.relay.now)
                self.relay.settle()
        return self

    def _send(self) -> None:
        while self._pushed < len(set(self.arrived)) + 60:
            self._exit.push(*packets(501 + self._pushed, 10, 4 * KIB))
            self._pushed += 10
        while self.relay.links_ready:
            link = self.relay.links_ready.pop(0)
            path, now = self._paths[link], self.relay.now
            while frames := self.relay.switch.poll_link(link, 1 << 20, now):
                begins_us = max(now, path[-1][0] if path else 0)
                size = sum(len(frame.data) for frame in frames)
                path.append((begins_us + size * SECOND // self._rate, [frame.sequence for frame in frames]))
                self.relay.settle()
            self.relay.settle()

    def _arrive(self, link: int) -> None:
        path = self._paths[link]
        while path and path[0][0] <= self.relay.now:
            self.arrived += path.popleft()[1]
            self.relay.switch.link_receipted(link, 1, self.relay.now)
            self.relay.settle()


@pytest.mark.parametrize("rate", [6 * KIB, 8 * KIB, 12 * KIB])
def test_links_on_slow_paths_carry_something_new_all_the_time(rate: int) -> None:
    """What was taken back still fills the path: if as much again followed it, that would stall as well."""
    path, counts = SlowPath(rate), [0]
    for _ in range(4):
        counts.append(len(set(path.run(20).arrived)))
    possible = 20 * 2 * rate // (4 * KIB)
    assert all(after - before > possible * 3 // 4 for before, after in pairwise(counts[2:]))
    assert min(counts[1], counts[2] - counts[1]) > possible // 3  # each window was sent twice


def test_the_last_link_that_works_is_not_distrusted_unless_the_endpoint_pulls() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2)
    exit_.push(*packets(501, 8))
    drained(relay)
    for _ in range(3):
        relay.now += 2 * SECOND
        relay.switch.link_packets(1, [], relay.now)
        relay.settle()
        drained(relay)
    taken_back = relay.counters.packets_taken_back
    assert 0 < taken_back < 8
    relay.now += 9 * SECOND
    client.push(lane=1)
    found = [packet.sequence for packet in client.packets(client.pull(lane=1))]
    assert relay.counters.packets_taken_back > taken_back
    assert found


def test_a_link_that_its_endpoint_leaves_gets_no_packets_and_the_others_carry() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2, 3)
    exit_.push(*packets(501, 6))
    left = all_of(drained(relay))
    relay.switch.link_left(2, relay.now)
    exit_.push(*packets(507, 12))
    found = drained(relay)
    assert sorted(found) == [1, 3]
    assert sorted(left + all_of(found)) == list(range(501, 519))
    relay.switch.link_left(7, relay.now)  # no such link


def test_what_was_offered_to_a_link_that_is_left_goes_to_another_one() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2)
    exit_.push(*packets(501, 1))
    (offered,) = relay.links_ready
    relay.switch.link_left(offered, relay.now)
    relay.settle()
    assert drained(relay) == {3 - offered: [501]}


def test_the_last_line_that_works_is_spared_beside_one_that_is_left() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1, 2)
    relay.switch.link_left(1, relay.now)
    exit_.push(*packets(501, 1))
    assert drained(relay) == {2: [501]}
    relay.now += 20 * SECOND
    relay.switch.link_packets(1, frames_of(data(11, 22, 101)), relay.now)
    relay.settle()
    exit_.push(*packets(502, 1))
    assert all_of(drained(relay)) in ([], [502])
    relay.switch.link_receipted(2, 1, relay.now)
    relay.settle()
    exit_.push(*packets(503, 1))
    assert 501 not in all_of(drained(relay))


def test_a_link_that_carries_alone_is_not_left() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    assert relay.switch.link_opened(1, client.user, client.identity, client.epoch, client.generation, relay.now)
    relay.settle()
    relay.switch.link_left(1, relay.now)
    exit_.push(*packets(501, 1))
    assert drained(relay) == {1: [501]}


def test_packets_wait_for_a_pull_when_every_link_is_left() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    shared(relay, client, 1)
    relay.switch.link_left(1, relay.now)
    exit_.push(*packets(501, 1))
    assert drained(relay) == {}
    assert [packet.sequence for packet in client.packets(client.pull())] == [501]
