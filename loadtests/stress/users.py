"""The users: each repeats actions of its kind on blocking tunnel sockets under gevent, and checks every byte.

Importing this module needs Locust, which replaces threads and sockets by those of gevent.
"""

import os
import random
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager

import xxhash
from locust import User, between, constant, events, task

import tunnel_client
from loadtests.stress.target import PATTERN, digest_of_pattern

__all__ = [
    "BulkUser",
    "ChurnUser",
    "EchoUser",
    "HalfCloserUser",
    "IdleCrowd",
    "RequestUser",
    "SlowReaderUser",
    "WriterUser",
]

TIMEOUT_S = 330.0  # longer than the user timeout, so that the tunnel reports the cause first
_BLOCK_BYTES = 64 * 1024
BULK_BYTES = 4 << 20
WRITER_BYTES = 16 << 20
CROWD = int(os.environ.get("STRESS_CROWD", 20))  # connections per IdleCrowd user
CROWD_PERIOD_S = 30.0


class WrongBytesError(AssertionError):
    """The bytes received are not the bytes sent, which must never happen."""


def target() -> tuple[str, int]:
    """Return the address of the target, as the relay sees it."""
    host, _, port = os.environ["STRESS_TARGET"].rpartition(":")
    return host, int(port)


@contextmanager
def measured(name: str) -> Iterator[list[int]]:
    """Report one action: its time, its size and, if it fails, its error. The caller puts the number of bytes into the
    list that it gets, as the first item.

    The error is only reported: it does not leave the block.
    """
    began = time.perf_counter()
    size = [0]
    error: Exception | None = None
    try:
        yield size
    except Exception as caught:
        error = caught
    events.request.fire(  # type: ignore[no-untyped-call]
        request_type="tunnel",
        name=name,
        response_time=(time.perf_counter() - began) * 1000,
        response_length=size[0],
        exception=error,
        context={},
    )


def dial(wish: bytes) -> socket.socket:
    """Connect to the target, and select the service `wish`."""
    made: socket.socket = tunnel_client.create_connection(target(), timeout=TIMEOUT_S)
    try:
        made.sendall(wish)
    except BaseException:
        made.close()
        raise
    return made


def take(sock: socket.socket, size: int) -> bytes:
    """Receive exactly `size` bytes."""
    parts = []
    while size:
        data = sock.recv(min(size, 1 << 18))
        if not data:
            raise WrongBytesError(f"the stream ended {size} bytes early")
        parts.append(data)
        size -= len(data)
    return b"".join(parts)


def check(found: bytes, expected: bytes) -> None:
    """Raise WrongBytesError unless the bytes are equal. A single such error fails the run."""
    if found != expected:
        raise WrongBytesError("the bytes received are not the bytes sent")


def upload(name: str, total: int) -> None:
    """Send this number of bytes on one connection, and compare the length and the digest that the target reports."""
    with measured(name) as size, dial(b"s") as sock:
        hashed = xxhash.xxh3_128()
        for _ in range(0, total, _BLOCK_BYTES):
            block = random.randbytes(_BLOCK_BYTES)
            hashed.update(block)
            sock.sendall(block)
        sock.shutdown(socket.SHUT_WR)
        check(take(sock, 24), total.to_bytes(8) + hashed.digest())
        size[0] = total


class Talker(User):
    """A user with one lasting connection for small exchanges. When it has broken, the next exchange connects again."""

    abstract = True

    def on_start(self) -> None:
        """Start without a connection; the first exchange connects."""
        self.sock: socket.socket | None = None

    def on_stop(self) -> None:
        """Close the connection, if there is one."""
        if self.sock is not None:
            self.sock.close()

    def talk(self, name: str, wish: bytes, word: bytes, answer: bytes) -> None:
        """Send a word, and check that the answer is as expected."""
        with measured(name) as size:
            if self.sock is None:
                self.sock = dial(wish)
            try:
                self.sock.sendall(word)
                check(take(self.sock, len(answer)), answer)
            except OSError:
                self.sock.close()
                self.sock = None
                raise
            size[0] = len(word) + len(answer)


class EchoUser(Talker):
    """Sends small words to the echo service."""

    weight = 6
    actions = ("echo",)
    wait_time = between(0.05, 0.5)

    @task
    def echo(self) -> None:
        """Send a word, and expect the same word back."""
        word = random.randbytes(random.randint(1, 2000))
        self.talk("echo", b"e", word, word)


class BulkUser(User):
    """Large transfers in either direction.

    The users keep no data. So if the memory in use grows with the loss of packets, it is not theirs.
    """

    weight = 1
    actions = ("upload", "download")
    wait_time = between(0.5, 2)

    @task
    def upload(self) -> None:
        """Send bytes, and compare the length and the digest that the target reports."""
        upload("upload", BULK_BYTES)

    @task
    def download(self) -> None:
        """Request bytes, and check them."""
        with measured("download") as size, dial(b"d" + BULK_BYTES.to_bytes(8)) as sock:
            hashed = xxhash.xxh3_128()
            for start in range(0, BULK_BYTES, _BLOCK_BYTES):
                hashed.update(take(sock, min(_BLOCK_BYTES, BULK_BYTES - start)))
            check(take(sock, 16), digest_of_pattern(BULK_BYTES))
            check(hashed.digest(), digest_of_pattern(BULK_BYTES))
            size[0] = BULK_BYTES


class WriterUser(User):
    """Writes without a pause on one connection, so that many packets are in flight for seconds.

    Only such a flight shows fast retransmit: a later packet must be known to have arrived, and an RTT must pass,
    before the burst ends and a tail probe repairs the loss.
    """

    weight = 1
    actions = ("long upload",)
    wait_time = constant(0)

    @task
    def write(self) -> None:
        """Send 16 MiB, and compare the length and the digest that the target reports."""
        upload("long upload", WRITER_BYTES)


class RequestUser(Talker):
    """Sends requests, and checks the answers."""

    weight = 4
    actions = ("request",)
    wait_time = between(0.05, 0.3)

    @task
    def ask(self) -> None:
        """Send a frame, and expect the same body reversed."""
        body = random.randbytes(random.choice((64, 512, 16_384)))
        head = len(body).to_bytes(4)
        self.talk("request", b"r", head + body, head + body[::-1])


class ChurnUser(User):
    """Connects, exchanges a few bytes, and closes."""

    weight = 3
    actions = ("connect and close",)
    wait_time = between(0.2, 1)

    @task
    def churn(self) -> None:
        """Connect, exchange a few bytes and close, once."""
        with measured("connect and close") as size, dial(b"e") as sock:
            sock.sendall(b"hello")
            check(take(sock, 5), b"hello")
            sock.shutdown(socket.SHUT_WR)
            check(sock.recv(1), b"")
            size[0] = 10


class SlowReaderUser(User):
    """Reads a little at a time. Its unread data must wait without slowing other connections."""

    weight = 1
    actions = ("slow reading",)
    wait_time = constant(1)

    @task
    def read_slowly(self) -> None:
        """Read one mebibyte in steps."""
        with measured("slow reading") as size, dial(b"d" + (1 << 20).to_bytes(8)) as sock:
            for start in range(0, 1 << 20, len(PATTERN)):
                check(take(sock, min(len(PATTERN), (1 << 20) - start)), PATTERN[: (1 << 20) - start])
                time.sleep(0.2)
            check(take(sock, 16), digest_of_pattern(1 << 20))
            size[0] = 1 << 20


class HalfCloserUser(User):
    """Ends its own direction, and continues to read."""

    weight = 2
    actions = ("half-close",)
    wait_time = between(0.5, 1.5)

    @task
    def half_close(self) -> None:
        """Check that bytes sent before the half-close come back after it."""
        with measured("half-close") as size, dial(b"e") as sock:
            data = random.randbytes(100_000)
            sender = memoryview(data)
            got = bytearray()
            for start in range(0, len(data), 20_000):
                sock.sendall(sender[start : start + 20_000])
                got += take(sock, 10_000)
            sock.shutdown(socket.SHUT_WR)
            got += take(sock, len(data) - len(got))
            check(bytes(got), data)
            check(sock.recv(1), b"")
            size[0] = 2 * len(data)


class IdleCrowd(User):
    """Holds many connections that are almost idle."""

    weight = 1
    actions = ("crowd connect",)
    wait_time = constant(0)

    def on_start(self) -> None:
        """Start without connections; the task opens one at a time."""
        self.crowd: list[socket.socket] = []

    def on_stop(self) -> None:
        """Close all connections."""
        for sock in self.crowd:
            sock.close()

    @task
    def live(self) -> None:
        """Open the next connection or, if all are open, send one word on each, spread over CROWD_PERIOD_S."""
        if len(self.crowd) < CROWD:
            with measured("crowd connect"):
                self.crowd.append(dial(b"e"))
            return
        for sock in list(self.crowd):
            time.sleep(CROWD_PERIOD_S / CROWD)
            with measured("crowd echo"):
                try:
                    sock.sendall(b"still here")
                    check(take(sock, 10), b"still here")
                except OSError:
                    self.crowd.remove(sock)
                    sock.close()
                    raise
