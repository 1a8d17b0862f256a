"""Measures what zero copy saves: a log goes to a socket out of its file, or through the memory of this process."""

import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from loadtests.experiments.backlog.sides import MESSAGE_BYTES
from tunnel.messages import Log
from tunnel.messages.kept.segments import SegmentSet
from tunnel.messages.sets.message import HEADER_BYTES

__all__ = ["Sent", "send_log"]

_PART_BYTES = 1 << 20  # size of one fetch, as `Consumer` asks for it by default
_READ_BYTES = 1 << 20


class Sent(msgspec.Struct):
    """The rate at which a log goes to a socket, and the processor time that its sender used."""

    mb_per_s: float = 0.0
    cpu_ms_per_mb: float = 0.0


def send_log(directory: Path, seconds: float, *, zero_copy: bool) -> Sent:
    """Send a log to a TCP socket again and again for some seconds, by `sendfile` or by a copy in memory."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
    drain = threading.Thread(target=_drain, args=(far,))
    drain.start()
    try:
        with near, Log.open(directory) as log:
            return _send(log, seconds, _by_sendfile(near) if zero_copy else _by_copy(near))
    finally:
        drain.join()


def _send(log: Log, seconds: float, send: Callable[[SegmentSet], None]) -> Sent:
    start, used, size = time.perf_counter(), time.thread_time(), 0
    offset = log.first_offset
    while time.perf_counter() < start + seconds:
        part = log.read(offset, _PART_BYTES)
        messages = part.size_bytes // (HEADER_BYTES + MESSAGE_BYTES)  # all have one size: no scan is needed
        if not messages:
            offset = log.first_offset
            continue
        send(part)
        size += part.size_bytes
        offset += messages
    mega = size / 1e6
    return Sent(mega / (time.perf_counter() - start), (time.thread_time() - used) * 1e3 / mega)


def _by_sendfile(near: socket.socket) -> Callable[[SegmentSet], None]:
    def send(part: SegmentSet) -> None:
        written = 0
        while written < part.size_bytes:
            written += part.write_to(near, written)

    return send


def _by_copy(near: socket.socket) -> Callable[[SegmentSet], None]:
    return lambda part: near.sendall(part.load())


def _drain(far: socket.socket) -> None:
    scratch = bytearray(_READ_BYTES)
    with far:
        while far.recv_into(scratch):
            pass
