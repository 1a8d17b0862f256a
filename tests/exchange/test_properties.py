"""Both halves of the lanes over a path with random faults: no packet is lost, and none arrives twice
unless the batch with it was given up."""

from collections.abc import Callable
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.exchange.loop import Fate, Loop, Relay, data_frame, data_packet
from tunnel.exchange import BatchDone, LaneConfig, Request

SECOND = 1_000_000
HEALS_US = 20 * SECOND
LIMIT_US = 200 * SECOND
COUNT = 40

rates = st.dictionaries(
    st.sampled_from(
        ["request_lost", "response_lost", "reported", "copied", "delayed", "damaged", "other", "too_large"]
    ),
    st.sampled_from([0.05, 0.2, 0.5]),
    max_size=4,
)
configs = st.builds(
    LaneConfig,
    lanes_start=st.integers(1, 4),
    one_connection=st.booleans(),
    body_bytes_start=st.sampled_from([16 * 1024, 64 * 1024]),
    answer_bytes_max=st.sampled_from([16 * 1024, 1 << 20]),
    pull_interval_us=st.sampled_from([0, 0, 300_000]),
)


def faults(seed: int, rates: dict[str, float]) -> Callable[[Request, int], Fate]:
    """Return fates: each attempt suffers each kind of fault at its rate until the path heals."""
    random = Random(seed)

    def fate(request: Request, now: int) -> Fate:
        if now >= HEALS_US:
            return Fate()
        struck = [kind for kind in sorted(rates) if random.getrandbits(16) < rates[kind] * 65536]
        copies = tuple(random.getrandbits(8 + 3 * index) for index in range(3)) if "copied" in struck else ()
        too_large = 413 if "too_large" in struck and not request.pull else 0
        damage = random.getrandbits(12) - 512 if "damaged" in struck else 0
        upwards = random.getrandbits(1)
        return Fate(
            request_damage=damage * upwards,
            response_damage=damage * (1 - upwards),
            request_lost="request_lost" in struck,
            response_lost="response_lost" in struck,
            reported="reported" in struck,
            copies=copies,
            delay_us=random.getrandbits(22) if "delayed" in struck else 0,
            status=502 if "other" in struck else too_large,
            retry_after_us=random.getrandbits(21) if "other" in struck else 0,
        )

    return fate


def transfer(loop: Loop, size: int, seed: int) -> None:
    """Send packets in both directions, a few at a time, until all have arrived."""
    random = Random(seed)
    for name in range(1, COUNT + 1):
        loop.queue.append(data_packet(name, 1 + random.getrandbits(size)))
        loop.relay.give([data_frame(name, 1 + random.getrandbits(size))])
        if random.getrandbits(2) == 0:
            loop.run(loop.now + random.getrandbits(21))
    everything = set(range(1, COUNT + 1))
    while {name for _, name in loop.relay.received} != everything or set(loop.delivered) != everything or loop.queue:
        assert loop.now < LIMIT_US, "a packet was lost"
        loop.run(loop.now + SECOND)
        again_if_given_up(loop)


def again_if_given_up(loop: Loop) -> None:
    """Queue the packets of each batch that was given up, as the core would."""
    for _, event in loop.events:
        if isinstance(event, BatchDone) and not event.ok:
            _, names = loop.pushed.pop(event.token, (0, []))
            loop.queue.extend(data_packet(name) for name in names)


@settings(max_examples=150)
@given(st.integers(0, 1 << 30), rates, configs, st.sampled_from([6, 12, 16]))
def test_nothing_is_lost_and_nothing_arrives_twice(
    seed: int, rates: dict[str, float], config: LaneConfig, size: int
) -> None:
    loop = Loop(config, faults(seed, rates), seed=seed)
    transfer(loop, size, seed)
    given_up = {event.token for event in loop.told(BatchDone) if isinstance(event, BatchDone) and not event.ok}
    if not given_up:  # a batch that was given up may have arrived all the same, and so may the answer to it
        assert len(loop.delivered) == len(set(loop.delivered))
        names = [name for _, name in loop.relay.received]
        assert len(names) == len(set(names))
        for lane in range(8):
            own = [name for index, name in loop.relay.received if index == lane]
            assert own == sorted(own)
    told = [event.token for event in loop.told(BatchDone) if isinstance(event, BatchDone)]
    assert len(told) == len(set(told))
    assert len(loop.lanes._open) == sum(len(flight.attempts) for flight in loop.lanes._flights())


@given(st.binary(max_size=200), st.integers(100, 599), st.sampled_from([b"", b"TUNL", b"TUNL\x01\x04\x00\x00"]))
def test_no_response_raises(body: bytes, status: int, magic: bytes) -> None:
    loop = Loop(LaneConfig())
    loop.run(SECOND)
    loop.queue.append(data_packet(1))
    loop.pump()
    for _, request in list(loop.requests):
        loop.lanes.answered(request.id, status, magic + body, 0, loop.now)
        loop.pump()


@settings(max_examples=50)
@given(st.integers(0, 1 << 30), rates, configs, st.lists(st.integers(1, HEALS_US), min_size=1, max_size=4))
def test_nothing_is_lost_when_the_relay_forgets(
    seed: int, rates: dict[str, float], config: LaneConfig, restarts: list[int]
) -> None:
    loop = Loop(config, faults(seed, rates), seed=seed, relay=Relay(Random(seed)))
    for time_us in restarts:
        loop.at(time_us, loop.relay.restart)
    transfer(loop, 12, seed)
    told = [event.token for event in loop.told(BatchDone) if isinstance(event, BatchDone)]
    assert len(told) == len(set(told))


@pytest.mark.parametrize("seed", [1, 2])
def test_the_same_seed_gives_the_same_requests(seed: int) -> None:
    runs = []
    for _ in range(2):
        loop = Loop(LaneConfig(), faults(seed, {"request_lost": 0.3, "copied": 0.3, "delayed": 0.2}), seed=seed)
        transfer(loop, 12, seed)
        runs.append([(time_us, b"".join(request.body)) for time_us, request in loop.requests])
    assert runs[0] == runs[1]
