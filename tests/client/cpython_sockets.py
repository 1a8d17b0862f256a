"""CPython's own tests of sockets, with sockets that connect through a tunnel.

A program: `python cpython_sockets.py plain|tunnel CLASS...` runs whole classes of the interpreter's
test.test_socket and prints the outcome of each test as JSON. With "tunnel", every socket that a test connects is a
TunnelSocket; the one that a test accepts is the far end, behind the exit.
"""

import contextlib
import gc
import importlib
import json
import os
import socket
import sys
import types
import unittest
from typing import Any

from tunnel_client import TunnelSocket, create_connection

__all__ = ["CLASSES", "IMPOSSIBLE"]

# Every class of test.test_socket whose tests are about connected stream sockets over TCP.
CLASSES = """
BasicTCPTest BasicTCPTest2 BufferIOTest ContextManagersTest FileObjectClassTestCase InterruptedSendTimeoutTest
LineBufferedFileObjectClassTestCase NetworkConnectionAttributesTest NetworkConnectionBehaviourTest
NetworkConnectionNoServer NonBlockingTCPTests RecvmsgIntoTCPTest RecvmsgTCPTest SendfileUsingSendTest
SendfileUsingSendfileTest SendmsgTCPTest SmallBufferedFileObjectClassTestCase TCPCloserTest TCPTimeoutTest
UnbufferedFileObjectClassTestCase UnicodeReadFileObjectClassTestCase UnicodeReadWriteFileObjectClassTestCase
UnicodeWriteFileObjectClassTestCase
""".split()

# Tests that cannot pass, and why: docs/measurements/sockets.md has the same list.
IMPOSSIBLE = {
    "NetworkConnectionAttributesTest.testSourceAddress": "the exit decides the source address of a connection",
    "NetworkConnectionNoServer.test_create_connection_all_errors": "it counts addresses; only the far side knows them",
    "NetworkConnectionNoServer.test_create_connection_timeout": "it puts its own socket below create_connection",
    "SendfileUsingSendTest.testWithTimeoutTriggeredSend": "the buffers on the way may take its whole file",
    "SendfileUsingSendfileTest.testWithTimeoutTriggeredSend": "the buffers on the way may take its whole file",
}
TRIES = 3
_DEFAULT: Any = socket._GLOBAL_DEFAULT_TIMEOUT  # type: ignore[attr-defined]


class EitherSocket(TunnelSocket):
    """A TunnelSocket that also binds and listens, as an ordinary socket: the tests use one class for both."""

    bind = socket.socket.bind  # type: ignore[assignment]
    listen = socket.socket.listen  # type: ignore[assignment]

    def _check_kind(self) -> None:
        """Allow all kinds: some tests check the errors of datagram sockets."""


def through_tunnel(module: Any) -> None:
    """Replace the module `socket` in the test module by one with tunnel sockets."""
    shown = types.ModuleType("socket")
    shown.__dict__.update(socket.__dict__)
    shown.__dict__.update(socket=EitherSocket, create_connection=connect, fromfd=from_descriptor)
    module.socket = shown


def connect(address: Any, timeout: Any = _DEFAULT, *_: Any, **__: Any) -> TunnelSocket:
    """create_connection as the tests call it; a source address is ignored."""
    given = {} if timeout is _DEFAULT else {"timeout": timeout}
    return create_connection(address, **given)


def from_descriptor(number: int, family: int, kind: int, proto: int = 0) -> EitherSocket:
    """fromfd, as in the standard library."""
    return EitherSocket(family, kind, proto, os.dup(number))


def warm_up() -> None:
    """Start the runtime's threads before the tests, which count threads."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with contextlib.suppress(ConnectionRefusedError):
            create_connection(taken.getsockname(), timeout=60).close()


def name_of(test: Any) -> str:
    return str(test.id().rpartition(".")[2])


def run(suite: unittest.TestSuite, outcome: dict[str, str]) -> list[str]:
    """Run a suite and record its outcomes; return the tests that failed."""
    names = [name_of(test) for test in suite]
    result = unittest.TextTestRunner(stream=sys.stderr, verbosity=0).run(suite)
    outcome.update(dict.fromkeys(names, "passed"))
    outcome.update((name_of(test), f"skipped: {text}") for test, text in result.skipped)
    failed = {name_of(test): f"failed: {text}" for test, text in result.failures + result.errors}
    outcome.update(failed)
    return list(failed)


def main(kind: str, names: list[str]) -> None:
    test_socket: Any = importlib.import_module("test.test_socket")

    if kind == "tunnel":
        warm_up()
        through_tunnel(test_socket)
    loader = unittest.defaultTestLoader
    suites = {name: loader.loadTestsFromTestCase(getattr(test_socket, name)) for name in names}
    outcome = {name: dict.fromkeys(map(name_of, suite), "passed") for name, suite in suites.items()}
    gc.freeze()  # each test collects garbage several times: keep that fast
    for name, suite in suites.items():
        if kind == "tunnel":
            suite = unittest.TestSuite(test for test in suite if f"{name}.{name_of(test)}" not in IMPOSSIBLE)
        # Some tests have limits of a second, which a busy machine may exceed: failed tests are repeated.
        for _ in range(TRIES):
            failed = run(suite, outcome[name])
            suite = unittest.TestSuite(getattr(test_socket, name)(method) for method in failed)
        for method in outcome[name]:
            reason = IMPOSSIBLE.get(f"{name}.{method}")
            if kind == "tunnel" and reason is not None:
                outcome[name][method] = f"impossible: {reason}"
    print(json.dumps(outcome))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:] or CLASSES)
