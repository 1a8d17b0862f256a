"""The cost of many connections: `python -m loadtests.experiments.idle --connections 1000`.

First all connections are idle, over one attachment on carrier poll: they must cost one held request. Then the process
with all readers is stopped (SIGSTOP), and the writers continue until nothing moves any more: the bytes that the relay
keeps must stay within its limits. Prints the held requests, the bytes that the relay reports, and its resident memory.
"""

import asyncio
import json
import signal
import sys
from typing import Any, cast
from urllib.request import urlopen

import msgspec

import tunnel
from loadtests.bench.road_peer import SERVICE
from loadtests.harness.experiment import command, perform
from loadtests.harness.processes import Process, python_command, relay_command, resident_bytes
from tunnel_servlet.switch.config import SwitchConfig

__all__ = ["Figures", "main", "measure", "summary"]

_BLOCK = bytes(64 * 1024)
_WRITTEN_BYTES = 8 * 1024 * 1024  # limit per writer: far more than a stream may have in flight
_LOOK_S = 0.25
_QUIET_LOOKS = 12  # after this many looks without a change, nothing moves any more
_SETTLE_S = 120.0


class Figures(msgspec.Struct):
    """The results of a run.

    `held_requests` and `relay_idle_rss_bytes` are taken while all connections are idle, `relay_stopped_rss_bytes` and
    `relay_held_bytes` when all readers are stopped. `cap_bytes` is the limit of one mailbox. `routes` are those that
    were left then: fewer than connections mean that some had ended, and so were neither idle nor stopped.
    """

    connections: int
    held_requests: int
    relay_idle_rss_bytes: int
    relay_stopped_rss_bytes: int
    relay_held_bytes: int
    cap_bytes: int
    routes: int

    @property
    def is_good(self) -> bool:
        """Whether there is one held request, and the relay holds bytes of stopped readers, but no more than the cap."""
        is_loaded = self.routes >= self.connections > 0 and self.relay_held_bytes > 0
        return is_loaded and self.held_requests == 1 and self.relay_held_bytes <= self.cap_bytes


class _Writer(asyncio.Protocol):
    """Writes as much as the transport takes."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._left = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=0)
        self._is_paused = False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False
        self.write(self._left)

    def write(self, size: int) -> None:
        """Write up to `size` bytes; when the transport pauses, the rest follows after it resumes."""
        self._left = size
        while self._left > 0 and not self._is_paused:
            self._left -= len(_BLOCK)
            self._transport.write(_BLOCK)

    def abort(self) -> None:
        self._transport.abort()


class _Relay:
    """A relay with an admin listener, in another process."""

    def __init__(self) -> None:
        self._found: list[dict[str, Any]] = []
        arguments = ("--open", "--listen", "127.0.0.1:0", "--exit", "none", "--admin", "127.0.0.1:0")
        self.process = Process(relay_command("serve", *arguments), ready=self._listens)

    def _listens(self, line: str) -> bool:
        if '"listening"' in line:
            self._found.append(json.loads(line))
        return len(self._found) == 2

    @property
    def url(self) -> str:
        return str(self._found[0]["url"])

    def state(self) -> dict[str, int]:
        with urlopen(f"{self._found[1]['url']}/state", timeout=30) as answer:
            found: dict[str, int] = json.load(answer)["switch"]
            return found

    def rss_bytes(self) -> int:
        return resident_bytes(self.process.pid)


async def measure(connections: int) -> Figures:
    """Start all processes, measure both states, and stop everything."""
    relay = _Relay()
    async with relay.process:
        service = python_command("loadtests.bench.road_peer", "service", "--relay", relay.url)
        readers = Process(service, ready=lambda line: line.startswith("ready"))
        async with readers, tunnel.attach(relay.url, proxy=None, carrier="poll", linger=0.0) as writers:
            opened = [await writers.create_connection(_Writer, SERVICE, timeout=60.0) for _ in range(connections)]
            idle = await _settled(relay)
            idle_rss = relay.rss_bytes()
            readers.signal(signal.SIGSTOP)
            for _, writer in opened:
                writer.write(_WRITTEN_BYTES)
            stopped = await _settled(relay)
            figures = Figures(
                connections, idle["parked_pulls"], idle_rss, relay.rss_bytes(), stopped["bytes_held"],
                SwitchConfig().mailbox_bytes_max, stopped["routes_bound"],
            )  # fmt: skip
            for _, writer in opened:
                writer.abort()
    return figures


async def _settled(relay: _Relay) -> dict[str, int]:
    """Wait until the relay's state no longer changes, and return it. Raise TimeoutError after _SETTLE_S."""
    state: dict[str, int] = {}
    async with asyncio.timeout(_SETTLE_S):
        same = 0
        while same < _QUIET_LOOKS:
            before = state
            await asyncio.sleep(_LOOK_S)
            state = await asyncio.to_thread(relay.state)
            moved = ("bytes_held", "bytes_outstanding", "routes_bound", "parked_pulls")
            is_same = bool(before) and all(state[name] == before[name] for name in moved)
            same = same + 1 if is_same and state["parked_pulls"] else 0
    return state


def main(arguments: list[str] | None = None) -> int:
    """Print the figures. Return 0 if they are within the limits, 1 if not, and 3 without a result."""
    parser = command("experiments.idle", __doc__, "--connections 100 --json")
    parser.add_argument(
        "--connections", type=int, default=1000, help="at most 2048, the limit of one attachment (default: 1000)"
    )
    options = parser.parse_args(arguments)
    if not 1 <= options.connections <= SwitchConfig().routes_per_attachment_max:
        parser.error(f"--connections must be from 1 to {SwitchConfig().routes_per_attachment_max}")
    return perform(
        measure(options.connections),
        verdict=lambda figures: 0 if figures.is_good else 1,
        text=summary,
        as_json=options.json,
        plain=lambda figures: {**msgspec.to_builtins(figures), "is_good": figures.is_good},
    )


def summary(figures: Figures) -> str:
    """Return the figures as text for people."""
    mib = 1024 * 1024
    return (
        f"{figures.connections} idle connections over one attachment: {figures.held_requests} held request(s)\n"
        f"resident memory of the relay: {figures.relay_idle_rss_bytes / mib:.0f} MiB\n"
        f"all readers stopped: the relay holds {figures.relay_held_bytes / mib:.0f} MiB of at most "
        f"{figures.cap_bytes / mib:.0f}; resident memory {figures.relay_stopped_rss_bytes / mib:.0f} MiB"
    )


if __name__ == "__main__":
    sys.exit(main())
