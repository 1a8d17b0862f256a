"""A lossy relay that leaks on purpose, up to a bound: `STRESS_RELAY=tests.loadtests.stress.leakyrelay`."""

import socket
import sys

from loadtests.harness import lossyrelay
from loadtests.harness.losses import LossyFilter
from tunnel.core.ranges import RangeSet
from tunnel.wire import Frame

__all__ = ["LeakyFilter"]

_LEAK_BYTES = 256 * 1024
_LEAKS_MAX = 1000
_SOCKETS_MAX = 20
_leaked: list[tuple[bytes, RangeSet]] = []
_sockets: list[socket.socket] = []


class LeakyFilter(LossyFilter):
    """Keeps memory, an object of the tunnel and, at first, a descriptor for each packet."""

    def __call__(self, frame: Frame) -> bool:
        """Leak, and decide as LossyFilter does."""
        if len(_leaked) < _LEAKS_MAX:
            _leaked.append((b"x" * _LEAK_BYTES, RangeSet()))
        if len(_sockets) < _SOCKETS_MAX:
            _sockets.append(socket.socket())
        return super().__call__(frame)


if __name__ == "__main__":
    lossyrelay.LossyFilter = LeakyFilter  # type: ignore[attr-defined]
    sys.exit(lossyrelay.main())
