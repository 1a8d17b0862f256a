"""The target `switch`: bodies and packets of several users, right, wrong and hostile, at one relay."""

from collections.abc import Callable, Iterator
from random import Random

from tests.fuzz import switch_ops as ops
from tests.fuzz.draw import Draw
from tests.fuzz.switch_world import SwitchWorld
from tests.fuzz.target import Target as FuzzTarget
from tunnel.wire import Target, TargetKind
from tunnel_servlet.switch.config import SwitchConfig

__all__ = ["SWITCH_TARGET"]

OPERATIONS_MAX = 250
CHECK_EVERY = 4  # operations: a full recount costs more than the operations themselves
_SMALL = SwitchConfig(
    body_bytes_max=200_000,
    packet_bytes_max=80_000,
    packets_per_body_max=256,
    lanes_max=3,
    attachments_max=5,
    attachments_per_user_max=2,
    links_per_attachment_max=2,
    shared_links_per_attachment_max=3,
    names_per_attachment_max=2,
    replaced_max=2,
    routes_max=6,
    routes_per_user_max=4,
    routes_per_attachment_max=3,
    lingering_per_attachment_max=2,
    reserved_bytes=4096,
    early_bytes_max=8192,
    route_bytes_max=65_536,
    control_bytes_max=2048,
    initial_edge_bytes=16_384,
    mailbox_bytes_max=150_000,
    exit_mailbox_bytes_max=200_000,
    user_bytes_max=250_000,
    process_bytes_max=500_000,
    general_packets_max=8,
    notices_max=4,
    unreceipted_bytes_max=100_000,
)
_CONFIGS = (_SMALL, SwitchConfig())
_WEIGHTED: tuple[tuple[ops.Operation, int], ...] = (
    (ops.exchange, 14),
    (ops.data, 10),
    (ops.connect, 6),
    (ops.accept, 6),
    (ops.control, 5),
    (ops.listen, 3),
    (ops.step_time, 4),
    (ops.attach, 3),
    (ops.link, 4),
    (ops.odd_exchange, 3),
    (ops.wild_packet, 2),
    (ops.wild_body, 1),
    (ops.gone, 1),
    (ops.settings, 1),
    (ops.piece, 1),
)
# The lower six bits of a byte choose an entry of this table. A new operation takes over entries of old ones, so that
# all other entries, and with them saved inputs, keep their meaning.
OPERATIONS: tuple[ops.Operation, ...] = tuple(operation for operation, weight in _WEIGHTED for _ in range(weight))


def run(data: bytes) -> None:
    """Run one life of a relay."""
    draw = Draw(data)
    config, seed, begin = _CONFIGS[draw.byte() % len(_CONFIGS)], draw.byte(), draw.byte()
    world = SwitchWorld(draw, config, Random(seed))
    for party in world.parties:
        if begin >= 0b1110_0000 or not begin >> party.number & 1:
            ops.attach_as(world, party, "")
    if begin >= 0b1110_0000:
        _open_routes(world)
    world.check()
    for number in range(OPERATIONS_MAX):
        if not draw.more:
            break
        OPERATIONS[draw.byte() % len(OPERATIONS)](world)
        if not number % CHECK_EVERY:
            world.check()
    world.check()
    _end(world)


def _end(world: SwitchWorld) -> None:
    """Close all links, and let all attachments expire: then nothing is left."""
    for party in world.parties:
        while party.links:
            world.switch.link_closed(party.links.pop(), world.now)
    for _ in range(3):
        world.now += 1_000_000_000  # past every deadline
        world.switch.handle_timeout(world.now)
        world.collect()
    world.check()
    assert not world.open, "requests that will never be answered"
    stats = world.switch.stats()
    things = (stats.attachments, stats.users, stats.routes, stats.listeners, stats.parked_pulls, stats.timers)
    assert not any(things), f"attachments, users, routes, listeners, pulls or timers are left: {things}"
    kept_bytes = (stats.bytes_held, stats.bytes_reserved, stats.bytes_outstanding)
    assert not any(kept_bytes), f"bytes are held, reserved or outstanding: {kept_bytes}"


def _open_routes(world: SwitchWorld) -> None:
    """Bind two routes, of different users, whose ids are the same numbers."""
    alice, _, bob, eve, exit_party = world.parties
    ops.route(world, alice, bob, Target(TargetKind.SERVICE, "reports"), b"a" * 16)
    ops.route(world, eve, exit_party, Target(TargetKind.TCP, "reports", 80), b"e" * 16)
    assert world.switch.stats().routes_bound == 2


def _script(*steps: int | Callable[[SwitchWorld], None]) -> bytes:
    return bytes(step if isinstance(step, int) else OPERATIONS.index(step) for step in steps)


def _seeds() -> Iterator[tuple[str, bytes]]:
    everything = [step for operation, _ in _WEIGHTED for step in (operation, 1, 4, 1, 4, 2, 4, ops.exchange, 2, 4)]
    yield "all_attached", _script(0, 1, 0)
    yield "every_operation", _script(0, 1, 0, *everything)
    yield "two_routes", _script(0, 1, 224)
    data = (ops.data, 0, 5, 1, 1, 1, 1, 1, 0, ops.exchange, 0, 4, ops.exchange, 2, 5)
    yield "data_on_a_route", _script(0, 1, 224, *data, *data)
    flood = [step for number in range(6) for step in (ops.data, 0, 11, 1, 1, 1, number, 0, ops.exchange, 0, 4)]
    yield "a_full_mailbox", _script(0, 1, 224, *flood, ops.exchange, 2, 5, ops.exchange, 2, 13, *flood)
    yield "too_large", _script(0, 1, 224, ops.data, 0, 13, 0, 1, 1, 1, 0, ops.exchange, 0, 4)
    asked = (ops.connect, 0, 13, 1, 1, 0, 2, 0, 1, ops.exchange, 0, 4)
    back = (ops.attach, 0, 17, ops.attach, 2, 17)
    resumed = (ops.exchange, 2, 5, ops.accept, 2, 9, 1, 1, 1, 1, 0, 0, ops.exchange, 2, 4, ops.exchange, 0, 5)
    yield "resumed", _script(0, 1, 224, ops.step_time, 32, *back, *asked, *resumed, *data)
    yield "resumed_later", _script(0, 1, 224, ops.step_time, 32, *back[:3], *asked, *back[3:], *resumed, *data)
    drained = (ops.settings, 0, 255, *asked, ops.connect, 0, 0, 3, 3, 1, 0, 0, ops.exchange, 0, 4)
    yield "shutting_down", _script(0, 1, 224, *drained)
    ends = (
        ops.control,
        0,
        4,
        0,
        0,
        1,
        1,
        0,
        0,
        ops.exchange,
        0,
        4,
        ops.control,
        2,
        4,
        0,
        0,
        1,
        1,
        0,
        0,
        ops.exchange,
        2,
        4,
    )
    yield "both_shut_down", _script(0, 1, 224, *ends, *data)
    links = (ops.link, 0, 4, ops.link, 2, 4, ops.data, 0, 5, 1, 1, 1, 1, 0, ops.link, 0, 1, ops.link, 2, 2, 1)
    yield "links", _script(0, 1, 224, *links, *data, ops.link, 2, 3, ops.exchange, 2, 5, *data)
    yield "every_operation_with_routes", _script(1, 1, 224, *everything)


SWITCH_TARGET = FuzzTarget("switch", run, _seeds, 1024)
