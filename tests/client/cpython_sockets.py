"""CPython's own tests of sockets, with sockets that connect through a tunnel.

A program of its own: `python cpython_sockets.py plain|tunnel CLASS...` runs whole classes of the interpreter's
test.test_socket and prints, as JSON, what came of each test. In "tunnel", every socket that a test connects is a
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

# What cannot pass, and why: docs/SOCKET-API.md has the same list.
IMPOSSIBLE = {
    "NetworkConnectionAttributesTest.testSourceAddress": "the exit decides where a connection comes from",
    "NetworkConnectionNoServer.test_create_connection_all_errors": "it counts addresses; the far side alone knows them",
    "NetworkConnectionNoServer.test_create_connection_timeout": "it puts a socket of its own below create_connection",
    "SendfileUsingSendTest.testWithTimeoutTriggeredSend": "the buffers on the way may take its whole file",
    "SendfileUsingSendfileTest.testWithTimeoutTriggeredSend": "the buffers on the way may take its whole file",
}
TRIES = 3
_DEFAULT: Any = socket._GLOBAL_DEFAULT_TIMEOUT  # type: ignore[attr-defined]


class EitherSocket(TunnelSocket):
    """Tests listen with the same class: then it is an ordinary socket."""

    bind = socket.socket.bind  # type: ignore[assignment]
    listen = socket.socket.listen  # type: ignore[assignment]

    def _check_kind(self) -> None:
        """Tests also show what does not work with datagrams."""


def through_tunnel(module: Any) -> None:
    """Let the test module see another module `socket`."""
    shown = types.ModuleType("socket")
    shown.__dict__.update(socket.__dict__)
    shown.__dict__.update(socket=EitherSocket, create_connection=connect, fromfd=from_descriptor)
    module.socket = shown


def connect(address: Any, timeout: Any = _DEFAULT, *_: Any, **__: Any) -> TunnelSocket:
    """As the tests call it: with a source address, too, which means nothing here."""
    given = {} if timeout is _DEFAULT else {"timeout": timeout}
    return create_connection(address, **given)


def from_descriptor(number: int, family: int, kind: int, proto: int = 0) -> EitherSocket:
    """As in the standard library."""
    return EitherSocket(family, kind, proto, os.dup(number))


def warm_up() -> None:
    """The tests count threads: those of the runtime are there before."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        with contextlib.suppress(ConnectionRefusedError):
            create_connection(taken.getsockname(), timeout=60).close()


def name_of(test: Any) -> str:
    return str(test.id().rpartition(".")[2])


def run(suite: unittest.TestSuite, outcome: dict[str, str]) -> list[str]:
    """Run it and note what came of it; the tests that failed."""
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
    gc.freeze()  # each test collects garbage, several times
    for name, suite in suites.items():
        if kind == "tunnel":
            suite = unittest.TestSuite(test for test in suite if f"{name}.{name_of(test)}" not in IMPOSSIBLE)
        # Some have bounds of a second, which a busy machine may break: those that fail are tried again.
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
