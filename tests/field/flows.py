"""The bytes that the field moves: each direction of a transfer is a `Flow` with its own seed."""

from loadtests.harness.transfer import Flow

__all__ = ["DOWN_SEED", "KILL_SEED", "MIB", "SCANNED", "UP_SEED", "expected_digest"]

MIB = 1 << 20
UP_SEED, DOWN_SEED, KILL_SEED = 1, 2, 3


def expected_digest(size: int, seed: int) -> str:
    """The digest of a whole flow."""
    flow = Flow(size, seed)
    for _ in flow.chunks():
        pass
    return flow.digests[0]


def _beginning(seed: int) -> bytes:
    return bytes(next(Flow(64, seed).chunks())[:16])


SCANNED = (_beginning(UP_SEED), _beginning(DOWN_SEED))
"""The strings that content scanners of the field refuse: every upload and download begins with one."""
