"""Seeds that failed once, each under the name of the fault that it found, with the version of `draw_scenario`."""

import pytest

from tests.sim.runner import run_scenario
from tests.sim.scenario import draw_scenario

FOUND = {
    "a resume before a packet of the initiator arrived did not lift its suspension": (1, 1),
    "a damaged magic was answered as malformed and ended the attachment": (1, 49),
    "a late no-route notice suspended an acceptor whose route was bound": (1, 55),
    "the same after a link took over from lanes": (1, 139),
    "a batch was larger than its room by the rest of an ACCEPTED": (1, 188),
    "a stale REJECTED ended an open connection": (1, 192),
    "a slow path and lost answers: the late no-route notice again": (1, 226),
    "refused tries filled the backlog of a service": (1, 447),
    "a route bound again to the successor of a dead acceptor hung": (1, 477),
    "ids near the wrap of two initiators were the same": (1, 889),
    "early data larger than the acceptor's window was refused for ever": (1, 686),
    "the same with an exit that dials": (1, 787),
    "the same with a paused initiator": (1, 916),
    "OPTION was numbered after CLOSE": (1, 1438),
    "a delayed ATTACH of a dead endpoint shut its successor out": (1, 2140),
    "the same before anything was opened": (1, 4761),
    "an initiator forgot a connection while its route was gone": (1, 2974),
    "an acceptor forgot a connection while its route was gone": (1, 4671),
    "a service was not announced to a relay that had seen an older ATTACH": (1, 4046),
    "connections in the drain waited for a resume": (2, 348),
    "a drain of a minute was too short for an acceptor that received nothing": (2, 501295),
    "the same for an initiator, and its exit had forgotten it": (2, 101990),
    "a late no-route notice at an exit on a slow link": (1, 279),
    "a late no-route notice with two streams under way": (1, 388),
    "a late no-route notice before the first answer": (1, 433),
    "a late no-route notice while one side was closing": (1, 468),
    "a late no-route notice at the second exit": (1, 478),
    "a relay was new and refused what the old one had passed on": (1, 14),
    "a refused connection stayed accepted at the service": (1, 80),
    "a refused connection stayed accepted, among hundreds": (1, 264),
    "an initiator died before its acceptance arrived": (1, 396),
    "an acceptor died while the relay was away": (1, 461),
    "an acceptor died while the relay was away, and the path too": (1, 679),
    "an initiator died while the relay was away": (1, 642),
    "an initiator died in the middle of a bulk transfer": (1, 754),
    "an abort was lost with the relay": (1, 391),
    "a connection was refused because its exit was dead and then paused": (1, 120),
    "a connection waited for the next life of a paused endpoint": (1, 382),
    "an endpoint died before its peer had accepted": (1, 410),
    "ids near the wrap ran out": (1, 604),
    "an acceptor saw its connection after the initiator had finished": (1, 1684),
    "an acceptor saw a bulk connection after the initiator had finished": (1, 2646),
    "the oldest packet passed beyond a shrunken edge": (1, 237),
    "a timer that was due was armed after a pump": (1, 171),
    "a lost SHUTDOWN left its route at the relay": (3, 72),
    "two closed at once, and both ACKs were lost": (3, 101304),
    "an announcement was lost and the service was unreachable": (3, 1735),
    "lost SHUTDOWNs left dozens of routes at the relay": (3, 88),
    "the window of a successor was held against what a dead acceptor had allowed": (7, 500529),
}
ENCRYPTED = {
    "an acceptor that closed within the handshake never learned of its end": (6, 21),
    "the same at an exit": (6, 49),
    "an end of stream was told after close, before all bytes were read": (6, 3367),
}
HOSTILE = {
    "attachments that claimed a name were not limited": (5, 1012),
    "the kibibyte that may leave when nothing is charged was taken for an excess": (7, 21804),
    "large bodies were repeated faster than a slow path could carry them": (7, 1642),
}
LADDER = {
    "an idle exit on a road that passed a first message only was deaf": (8, 900061, False),
    "a try of a road on a narrow path never began": (8, 900267, False),
    "replaced links piled up where roads came and went": (8, 900347, True),
}


@pytest.mark.parametrize(("version", "seed"), FOUND.values(), ids=FOUND)
def test_a_seed_that_once_failed_passes(version: int, seed: int) -> None:
    outcome = run_scenario(draw_scenario(seed, version))
    assert not outcome.failure, outcome.report()


@pytest.mark.parametrize(("version", "seed"), HOSTILE.values(), ids=HOSTILE)
def test_a_seed_with_hostile_users_that_once_failed_passes(version: int, seed: int) -> None:
    outcome = run_scenario(draw_scenario(seed, version, hostile=True))
    assert not outcome.failure, outcome.report()


@pytest.mark.parametrize(("version", "seed"), ENCRYPTED.values(), ids=ENCRYPTED)
def test_a_seed_with_encrypted_streams_that_once_failed_passes(version: int, seed: int) -> None:
    outcome = run_scenario(draw_scenario(seed, version, encrypted=True))
    assert not outcome.failure, outcome.report()
    assert outcome.encrypted > 0


@pytest.mark.parametrize(("version", "seed", "hostile"), LADDER.values(), ids=LADDER)
def test_a_seed_with_ladders_that_once_failed_passes(version: int, seed: int, hostile: bool) -> None:
    outcome = run_scenario(draw_scenario(seed, version, ladder=True, hostile=hostile))
    assert not outcome.failure, outcome.report()
    assert outcome.roads_used > 0
