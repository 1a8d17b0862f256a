"""Status reports of running clients, each served on a Unix socket that only its owner can open.

    async with serve_status(attachment, "forward 5432:db.internal:5432"):
        ...

`running_clients` collects the reports of all running clients.
"""

import asyncio
import contextlib
import os
import socket
import stat
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import structlog

from tunnel import Attachment
from tunnel.system.private_files import make_private_directory
from tunnel_client.errors import UsageError

__all__ = [
    "ClientReport",
    "ConnectionReport",
    "EntryReport",
    "MoveLine",
    "RelayLine",
    "RoadLine",
    "report_of",
    "running_clients",
    "serve_reports",
    "serve_status",
    "status_directory",
]

_ASKED_AT_ONCE = 32
ANSWER_S = 2.0  # how long to wait for the report of a client
_REPORT_BYTES_MAX = 64 << 20
_SUFFIX = ".sock"
_log = structlog.get_logger("tunnel")


class ConnectionReport(msgspec.Struct):
    """The state of one connection through the tunnel. Byte counts are bytes of the application."""

    id: int
    target: str
    bytes_up: int  # acknowledged by the far end
    bytes_down: int  # delivered to the application here
    srtt_us: int
    rto_us: int
    packets_sent: int
    packets_resent: int
    packets_in_flight: int
    bytes_queued: int  # written here, but not yet taken by a carrier
    bytes_unread: int  # received, but not yet read here
    peer_window_bytes: int
    encryption: str = ""  # "verified", "not verified", "accepted"; empty: in clear
    round_trip_us: int = 0  # to the far end and back; srtt_us begins at the relay if the path confirms what it carries
    relay: str = ""  # of a client that has several
    stays: str = ""  # why it stays at a relay that does not serve it


class EntryReport(msgspec.Struct):
    """The state of one entry of the file of `tunnel up`."""

    name: str  # with its kind, as in "forward db"
    leads: str  # from where to where
    state: str  # "serving", "waiting" or "failed"
    error: str = ""  # why it does not serve, or why its latest connection failed
    connections_open: int = 0
    connections: int = 0
    connections_failed: int = 0
    bytes_up: int = 0
    bytes_down: int = 0


class RoadLine(msgspec.Struct):
    """The state of one road, as tunnel.exchange.RoadReport says it."""

    name: str
    state: str
    tries: int = 0
    why: str = ""  # the latest failure


class RelayLine(msgspec.Struct):
    """One of the relays of a client that has several."""

    url: str
    attached: bool
    is_used: bool  # new connections go there first
    carrier: str
    trouble: str
    connections: int
    is_refused: bool = False  # it has refused the client for good
    services_refused: dict[str, str] = {}  # why it does not take these services


class MoveLine(msgspec.Struct):
    """A connection that has moved from one relay to another, and why."""

    at_s: float  # Unix time
    connection: int
    target: str
    before: str
    now: str
    why: str


class ClientReport(msgspec.Struct):
    """The state of one running client."""

    pid: int
    command: str
    started_s: float  # Unix time
    attached: bool
    carrier: str
    trouble: str
    batches_unreceipted: int
    connections: list[ConnectionReport]
    entries: list[EntryReport] = []  # of `tunnel up`
    roads: list[RoadLine] = []  # those that the client may use besides poll
    relays: list[RelayLine] = []  # if there are several: those that the client has asked so far
    moves: list[MoveLine] = []  # if there are several relays: the latest, the oldest first
    moves_count: int = 0


def status_directory() -> Path:
    """Return the directory of the sockets: below XDG_RUNTIME_DIR, or else a directory of this user in /tmp."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    return Path(base) / "tunnel" if base.startswith("/") else Path(f"/tmp/tunnel-{os.geteuid()}")


@asynccontextmanager
async def serve_status(attachment: Attachment, command: str) -> AsyncIterator[None]:
    """Serve the client's reports while the context lasts.

    `command` is part of the report, so it must not contain a secret. If the socket cannot be created, that is logged
    and the client runs without it.
    """
    started_s = time.time()
    async with serve_reports(lambda: report_of(attachment, command, started_s)):
        yield


@asynccontextmanager
async def serve_reports(report: Callable[[], ClientReport]) -> AsyncIterator[None]:
    """Serve what `report` returns while the context lasts, as `serve_status` does."""
    try:
        path, server = await _listen(lambda: msgspec.json.encode(report()))
    except (OSError, UsageError) as error:
        _log.info("no_status", text=str(error))
        yield
        return
    try:
        yield
    finally:
        server.close()
        with contextlib.suppress(OSError):
            path.unlink()


def running_clients() -> list[ClientReport]:
    """Return the reports of all clients that answer, sorted by process id.

    Removes the sockets that no client listens on any more.
    """
    directory = status_directory()
    try:
        _require_private(directory)
        paths = sorted(directory.glob(f"*{_SUFFIX}"))
    except FileNotFoundError:
        return []
    except OSError as error:
        text = f"{directory} cannot be read: {error.strerror}: set XDG_RUNTIME_DIR to a directory of yours, or unset it"
        raise UsageError(text) from None
    with ThreadPoolExecutor(_ASKED_AT_ONCE) as workers:  # a client that does not answer holds up no other
        reports = [report for found in workers.map(lambda path: list(_ask(path)), paths) for report in found]
    return sorted(reports, key=lambda report: (report.pid, report.command))


async def _listen(report: Callable[[], bytes]) -> tuple[Path, asyncio.Server]:
    directory = status_directory()
    make_private_directory(directory)
    _require_private(directory)
    path = directory / f"{os.getpid()}-{time.monotonic_ns()}{_SUFFIX}"
    sock = socket.socket(socket.AF_UNIX)
    try:
        sock.bind(str(path))
        path.chmod(0o600)  # early enough: no process can connect before the socket listens

        def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            writer.write(report())
            writer.close()

        return path, await asyncio.start_unix_server(answer, sock=sock)
    except BaseException:
        sock.close()
        with contextlib.suppress(OSError):
            path.unlink()
        raise


def _require_private(directory: Path) -> None:
    """Raise UsageError unless only this user can use the directory: in /tmp another user may have created it."""
    found = directory.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o077:
        raise UsageError(f"{directory} is not a directory that only you can use: remove it, or set XDG_RUNTIME_DIR")


def report_of(attachment: Attachment, command: str, started_s: float) -> ClientReport:
    """Return the report of a client with an attachment that was started."""
    stats = attachment.stats()
    connections = [
        ConnectionReport(
            id=number,
            target=stats.targets.get(number, ""),
            bytes_up=found.bytes_acknowledged,
            bytes_down=found.bytes_delivered,
            srtt_us=found.srtt_us,
            round_trip_us=found.round_trip_us,
            rto_us=found.rto_us,
            packets_sent=found.packets_sent,
            packets_resent=found.packets_resent,
            packets_in_flight=found.in_flight_packets,
            bytes_queued=found.bytes_buffered,
            bytes_unread=found.receive_buffer_bytes,
            peer_window_bytes=found.window_bytes,
            encryption=stats.encryption.get(number, ""),
            relay=stats.relay_of.get(number, ""),
            stays=stats.stays.get(number, ""),
        )
        for number, found in stats.connections.items()
    ]
    return ClientReport(
        os.getpid(),
        command,
        started_s,
        stats.attached,
        stats.carrier,
        stats.trouble,
        stats.batches_unreceipted,
        connections,
        relays=[msgspec.convert(one, RelayLine, from_attributes=True) for one in stats.relays],
        moves=[msgspec.convert(one, MoveLine, from_attributes=True) for one in stats.moves],
        moves_count=stats.moves_count,
        roads=[RoadLine(road.name, road.state, road.tries, road.why) for road in stats.roads],
    )


def _ask(path: Path) -> Iterator[ClientReport]:
    """Yield the report of one client, or nothing if the client has ended or does not answer."""
    answer = bytearray()
    try:
        with socket.socket(socket.AF_UNIX) as sock:
            sock.settimeout(ANSWER_S)
            sock.connect(str(path))
            while (data := sock.recv(1 << 16)) and len(answer) < _REPORT_BYTES_MAX:
                answer += data
        yield msgspec.json.decode(answer, type=ClientReport)
    except ConnectionRefusedError:
        with contextlib.suppress(OSError):
            path.unlink()
    except (OSError, msgspec.DecodeError):
        return
