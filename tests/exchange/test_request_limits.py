"""Transfers behind limits of requests: how long they take, and how two clients share a limit (7.9, 7.18)."""

from collections.abc import Callable
from itertools import pairwise
from random import Random

import pytest

from tests.exchange.limits import Bucket, Estimate, LateLoop, Passes, Periods, Window
from tests.exchange.loop import Fate, Relay, data_frame, data_packet
from tests.exchange.rig import KIB, MIB, MS, PACKET_BYTES, SECOND
from tunnel.exchange import Request

_PACKETS = 2 * MIB // PACKET_BYTES
_STEP_US = 5 * MS
_BODY_BYTES_MAX = 32 * KIB  # so that a transfer takes some dozen requests at least

MakeLimit = Callable[[Random], Passes]
TWENTY: dict[str, MakeLimit] = {
    "estimate": lambda random: Estimate(20, -random.randrange(SECOND)),
    "window": lambda random: Window(20),
    "window of what passed": lambda random: Window(20, counts_all=False),
    "bucket": lambda random: Bucket(50 * MS, 20),
    "bucket that counts all": lambda random: Bucket(50 * MS, 20, counts_all=True),
    "periods": lambda random: Periods(20, -random.randrange(SECOND)),
}


def limited(seed: int, passes: Callable[[Request, int], bool]) -> LateLoop:
    """An endpoint at some distance, on a machine that is more or less busy, behind a limit that answers 429."""
    random = Random(seed)

    def fate(request: Request, now: int) -> Fate:
        if not passes(request, now):
            return Fate(status=429)
        too_large = sum(map(len, request.body)) > _BODY_BYTES_MAX
        return Fate(status=413) if too_large else Fate(delay_us=random.randrange(30 * MS))

    loop = LateLoop(
        fate=fate, seed=seed, one_way_us=random.choice([1, 5, 20, 50, 100, 200]) * MS, relay=Relay(Random(seed))
    )
    loop.late_us = random.choice([0, 10, 30, 100, 300]) * MS
    loop.resends = True
    loop.run(random.randrange(100 * MS, 3 * SECOND))
    return loop


def behind(seed: int, make: MakeLimit) -> LateLoop:
    limit = make(Random(seed))
    return limited(seed, lambda request, now: limit(now))


def transfer(loop: LateLoop) -> int:
    """Move 2 MiB each way; return the time."""
    began_us, received, delivered = loop.now, len(loop.relay.received), len(loop.delivered)
    loop.queue.extend([data_packet(1, PACKET_BYTES)] * _PACKETS)
    loop.relay.give([data_frame(1, PACKET_BYTES)] * _PACKETS, loop.now)
    while len(loop.relay.received) < received + _PACKETS or len(loop.delivered) < delivered + _PACKETS:
        assert loop.now < began_us + 300 * SECOND, "the transfer takes far too long"
        loop.run(loop.now + 10 * MS)
    return loop.now - began_us


def pauses(loop: LateLoop, since_us: int = 0) -> list[int]:
    """The times between requests that left since then."""
    return [after - before for (before, _), (after, _) in pairwise(loop.requests) if before >= since_us]


@pytest.mark.parametrize("name", list(TWENTY))
def test_twenty_requests_a_second_are_no_ban(name: str) -> None:
    """A transfer takes 64 requests or more. Refusals go on for up to two seconds, and must not lead to the pause of a
    ban."""
    for seed in range(100 if name == "estimate" else 10):
        loop = behind(seed, TWENTY[name])
        assert transfer(loop) <= 15 * SECOND, seed
        assert max(pauses(loop)) <= 4 * SECOND, seed


@pytest.mark.parametrize("name", list(TWENTY))
def test_what_a_limit_has_taught_is_kept(name: str) -> None:
    """The second transfer meets few refusals. The limit alone makes it take three seconds."""
    for seed in range(5):
        loop = behind(seed, TWENTY[name])
        transfer(loop)
        began_us = loop.now
        assert transfer(loop) <= 9 * SECOND, seed
        assert max(pauses(loop, began_us)) <= 2 * SECOND, seed


def test_a_limit_of_each_connection() -> None:
    """Five requests at once and five a second on each: the lanes have one connection each."""
    for seed in range(10):
        buckets: dict[int, Bucket] = {}

        def passes(request: Request, now: int, buckets: dict[int, Bucket] = buckets) -> bool:
            return buckets.setdefault(request.lane, Bucket(200 * MS, 5))(now)

        loop = limited(seed, passes)
        assert transfer(loop) <= 15 * SECOND, seed


@pytest.mark.parametrize("counts_all", [False, True])
def test_five_requests_in_ten_seconds_pass_one_by_one(*, counts_all: bool) -> None:
    """Few requests earn this ban, so it has to come twice before they leave more slowly, and once more where refused
    requests have made the first gap too small."""
    for seed in range(5):
        loop = behind(seed, lambda random: Window(5, 10 * SECOND, counts_all=counts_all))
        loop.queue.extend([data_packet(1, PACKET_BYTES)] * _PACKETS)
        loop.run(3 * 60 * SECOND)
        assert sum(pause_us >= 10 * SECOND for pause_us in pauses(loop)) <= 3, seed
        assert max(pauses(loop, 2 * 60 * SECOND)) <= 8 * SECOND, seed


def test_sixty_requests_in_a_minute_pass_after_two_bans() -> None:
    for seed in range(5):
        loop = behind(seed, lambda random: Window(60, 60 * SECOND, counts_all=False))
        for second in range(600):
            loop.at(second * SECOND, lambda loop=loop: loop.queue.extend([data_packet(1, PACKET_BYTES)] * 40))  # type: ignore[misc]
        loop.run(15 * 60 * SECOND)
        late = pauses(loop, 6 * 60 * SECOND)
        assert max(late) <= 4 * SECOND, seed
        assert len(late) >= 0.5 * 9 * 60, seed


@pytest.mark.parametrize("name", ["estimate", "window", "bucket"])
def test_two_clients_share_a_limit(name: str) -> None:
    """One of them comes five seconds later. In the end, neither has less than a quarter."""
    for seed in range(3):
        limit = TWENTY[name](Random(seed))
        first, second = [limited(2 * seed + one, lambda request, now, limit=limit: limit(now)) for one in range(2)]  # type: ignore[misc]
        for time_us in range(3 * SECOND, 43 * SECOND, _STEP_US):
            if time_us == 23 * SECOND:
                before = [len(loop.relay.received) for loop in (first, second)]
            for loop in (first, second) if time_us >= 8 * SECOND else (first,):
                if len(loop.queue) < 100:
                    loop.queue.extend([data_packet(1, PACKET_BYTES)] * 100)
                loop.run(time_us)
        shares = [len(loop.relay.received) - then for loop, then in zip((first, second), before, strict=True)]
        assert min(shares) >= sum(shares) / 4, seed
