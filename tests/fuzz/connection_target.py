"""The target `connection`: an endpoint with up to six connections; the input plays peers, a relay and a carrier.

The first four bytes choose the configuration, a seed, the starting state, and whether peers and relay lie, whether
bodies are large, and whether the endpoint writes a trace. After them each byte chooses an operation, which takes its
parameters from the bytes after it.
"""

from collections.abc import Iterator
from random import Random

from tests.fuzz import connection_hostile as hostile
from tests.fuzz import connection_ops as ops
from tests.fuzz.connection_checks import check_world
from tests.fuzz.connection_settle import settle
from tests.fuzz.connection_world import World
from tests.fuzz.draw import Draw
from tests.fuzz.target import Target
from tunnel.core.config import EndpointConfig

__all__ = ["CONNECTION_TARGET"]

OPERATIONS_MAX = 300
_CONFIGS = (
    EndpointConfig(exit=True),
    EndpointConfig(
        window_bytes_start=20_000,
        window_bytes_max=100_000,
        budget_bytes=50_000,
        send_buffer_bytes_max=30_000,
        packet_bytes_max=8192,
        connections_max=3,
        out_of_order_packets_max=16,
        exit=True,
    ),
    EndpointConfig(window_bytes_min=1000, window_bytes_start=1000, window_bytes_max=2000, packet_bytes_max=1048),
    EndpointConfig(keepalive_us=0, user_timeout_us=1_000_000, send_buffer_bytes_max=100_000, budget_bytes=0, exit=True),
)
_WEIGHTED: tuple[tuple[ops.Operation, int], ...] = (
    (ops.arrive, 5),
    (hostile.flood, 1),
    (ops.step_time, 6),
    (ops.carrier_batch, 7),
    (ops.carrier_done, 5),
    (ops.app_write, 4),
    (ops.app_read, 4),
    (ops.peer_says, 5),
    (ops.peer_resends, 3),
    (ops.peer_acks, 5),
    (ops.app_end, 2),
    (ops.peer_ends, 2),
    (ops.app_answer, 1),
    (ops.app_listen, 1),
    (ops.dial, 1),
    (ops.knock, 1),
    (ops.answer, 1),
    (ops.carrier_attached, 1),
    (ops.carrier_changed, 1),
    (ops.peer_signals, 1),
    (ops.peer_option, 1),
    (hostile.relay_drops, 1),
    (hostile.relay_edge, 1),
    (hostile.relay_listens, 1),
    (hostile.stranger, 1),
    (hostile.lying_ack, 1),
    (hostile.lying_data, 1),
    (hostile.replay, 1),
)
# A byte, modulo the length of this table, chooses an entry. A new operation takes over entries of old ones, so that all
# other entries, and with them saved inputs, keep their meaning.
OPERATIONS: tuple[ops.Operation, ...] = tuple(operation for operation, weight in _WEIGHTED for _ in range(weight))
_INITIATOR, _SERVICE, _EXIT = range(3)


def run(data: bytes) -> None:
    """Run one life of an endpoint."""
    draw = Draw(data)
    config, seed, begin, flags = _CONFIGS[draw.byte() % len(_CONFIGS)], draw.byte(), draw.byte(), draw.byte()
    world = World(draw, config, Random(seed), hostile=bool(flags & 1), fat=bool(flags & 2), traced=bool(flags & 4))
    if begin & 3 == _INITIATOR:
        ops.dial(world)
        world.take_batch(1 << 16, arrives=True)
        if begin & 4:
            ops.answer(world)
    else:
        world.endpoint.listen(ops.SERVICE, 4, world.now)
        ops.knock(world)
    world.flush()
    for _ in range(OPERATIONS_MAX):
        if not draw.more:
            break
        OPERATIONS[draw.byte() % len(OPERATIONS)](world)
        check_world(world)
    if not world.hostile:
        settle(world)


def _script(*steps: int | ops.Operation) -> bytes:
    return bytes(step if isinstance(step, int) else OPERATIONS.index(step) for step in steps)


def _seeds() -> Iterator[tuple[str, bytes]]:
    """Yield short lives, which the fuzzer mutates."""
    dialled = (0, 1, 4, 0, 0, 1, 5, 0, 0, 6)  # configuration, ids and sequence numbers, ACCEPTED
    there = (ops.app_write, 5, ops.carrier_batch, 12, ops.carrier_done, 1, ops.peer_acks, 6, 0, ops.arrive)
    back = (ops.peer_says, 4, 5, ops.arrive, ops.app_read, 13, ops.carrier_batch, 12, ops.carrier_done, 1)
    ours = (ops.app_end, 5, ops.carrier_batch, 12, ops.carrier_done, 1, ops.peer_acks, 6, 0, ops.arrive)
    theirs = (ops.peer_ends, 5, ops.arrive, ops.app_read, 13, ops.carrier_batch, 12, ops.carrier_done, 1)
    late = (ops.step_time, 1) * 6
    everything = [step for operation, _ in _WEIGHTED for step in (operation, 1, 5, 1, ops.arrive)]
    yield "dialled_and_closed", _script(*dialled, *there, *back, *there, *back, *ours, *theirs, *late)
    yield "closed_by_the_peer", _script(*dialled, *there, *back, *theirs, *late, *ours)
    yield "finished_first", _script(*dialled, *there, ops.app_end, 0, *there, *back, *theirs)
    yield "lost_and_resent", _script(*dialled, *there, ops.app_write, 7, ops.carrier_batch, 0, *late, *there, *there)
    yield "a_route_lost", _script(*dialled, *there, ops.carrier_attached, 1, 2, 6, 0, *there, *back, *late)
    yield "every_operation", _script(*dialled, *everything)
    for name, begin, target in (("a_service", 1, 0), ("an_exit", 2, 2)):
        knocked = (0, 1, begin, 0, target, 0, 1, 1, 5, 0, 6, ops.app_answer, 1, ops.carrier_batch, 12)
        yield f"{name}_answers", _script(*knocked, *there, *back, *there, *back, *ours, *theirs, *late)
        yield f"{name}_and_every_operation", _script(*knocked, *there, *everything)
        yield f"{name}_and_liars", _script(*knocked[:3], 7, *knocked[4:], *there, *everything)


CONNECTION_TARGET = Target("connection", run, _seeds, 1024)
