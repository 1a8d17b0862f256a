"""The loop thread and its process: several threads, a fork, gevent, the end of the interpreter."""

from __future__ import annotations

import errno
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.sockets_rig import DEADLINE_S, RelayThread, run_python
from tunnel.traces import TraceEvent
from tunnel.traces.jsonl import read_trace
from tunnel_client import Runtime, create_connection
from tunnel_client.sockets.loop_thread import LoopThread, loop_thread
from tunnel_client.sockets.runtime import connecting


@pytest.fixture
def listener() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0), backlog=64) as listener:
        listener.settimeout(DEADLINE_S)
        yield listener


def accept(listener: socket.socket) -> socket.socket:
    far, _ = listener.accept()
    far.settimeout(DEADLINE_S)
    return far


def read_all(sock: socket.socket) -> bytes:
    with sock, sock.makefile("rb") as file:
        return file.read()


def test_there_is_one_loop_thread() -> None:
    assert loop_thread() is loop_thread()
    assert [thread.name for thread in threading.enumerate()].count("tunnel") == 1


def test_many_threads_connect_at_once(relay: RelayThread) -> None:
    runtime = Runtime(relay.settings, linger=2.0)
    answers: list[bytes] = []

    def talk(number: int) -> None:
        with create_connection("reports", DEADLINE_S, runtime=runtime) as sock:
            sock.sendall(b"%03d" % number)
            with sock.makefile("rb") as file:
                answers.append(file.read(3))

    threads = [threading.Thread(target=talk, args=(number,)) for number in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(DEADLINE_S)
    runtime.close()
    assert sorted(answers) == [b"%03d" % number for number in range(20)]


def test_a_timeout_cancels_the_coroutine_in_the_loop_thread() -> None:
    thread = LoopThread()
    entered = threading.Event()
    ended = threading.Event()

    async def forever() -> None:
        entered.set()
        try:
            await thread.loop.create_future()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        thread.run(forever(), 0.2)
    assert entered.wait(DEADLINE_S)
    assert ended.wait(DEADLINE_S)
    thread.stop()
    assert not thread.is_alive()


# These programs leave sockets to the garbage collector, about which Python warns.
QUIET = "import warnings; warnings.simplefilter('ignore')\n"

FORK = """
import os, sys, socket, tunnel_client
address = "db.internal", int(sys.argv[1])
first = tunnel_client.create_connection(address, timeout=60)
first.sendall(b"parent ")
child = os.fork()
if child == 0:
    first.sendall(b"child ")                                    # pumped by the parent
    with tunnel_client.create_connection(address, timeout=60) as own:  # of a runtime of its own
        own.sendall(b"own")
        own.shutdown(socket.SHUT_WR)
        assert own.recv(1) == b""
    sys.exit(7)
status = os.waitpid(child, 0)[1]
assert os.waitstatus_to_exitcode(status) == 7, status
first.sendall(b"parent")
"""


def test_a_forked_child_can_use_inherited_sockets_and_open_its_own(relay: RelayThread, listener: socket.socket) -> None:
    received: list[bytes] = []

    def serve() -> None:
        with accept(listener) as first, accept(listener) as second:
            received.append(read_all(second))
            second.close()
            received.append(read_all(first))

    thread = threading.Thread(target=serve)
    thread.start()
    done = run_python(relay, QUIET + FORK, str(listener.getsockname()[1]))
    thread.join(DEADLINE_S)
    assert received == [b"own", b"parent child parent"]
    assert done.stderr == ""


FORK_AND_TRACE = """
import os, sys, socket, tunnel, tunnel_client
from tunnel_client.sockets.runtime import default_runtime
trace = tunnel.open_trace(sys.argv[2], name="sockets")
tunnel_client.configure(trace=trace)

def talk():
    with tunnel_client.create_connection(("db.internal", int(sys.argv[1])), timeout=60) as sock:
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""

talk()
child = os.fork()
if child == 0:
    queued = len(trace._queue)
    talk()
    assert len(trace._queue) == queued
    sys.exit(7)
status = os.waitpid(child, 0)[1]
assert os.waitstatus_to_exitcode(status) == 7, status
default_runtime().close()
trace.close()
"""


def test_sockets_trace_and_a_forked_child_does_not(relay: RelayThread, listener: socket.socket, tmp_path: Path) -> None:
    """The thread that writes the records is the parent's: those of a child would only take memory."""

    def serve() -> None:
        for _ in range(2):
            with accept(listener) as far:
                far.recv(1)

    thread = threading.Thread(target=serve)
    thread.start()
    done = run_python(relay, QUIET + FORK_AND_TRACE, str(listener.getsockname()[1]), str(tmp_path / "traces"))
    thread.join(DEADLINE_S)
    assert done.stderr == ""
    (path,) = (tmp_path / "traces").iterdir()
    events = [record.event for record in read_trace(path)]
    assert events.count(TraceEvent.ATTACHED) == 1
    assert events.count(TraceEvent.CONNECTION_CLOSED) == 1


FORK_AND_RESET = """
import os, sys, tunnel_client
sock = tunnel_client.create_connection(("db.internal", int(sys.argv[1])), timeout=60)
reader, writer = os.pipe()
child = os.fork()
if child == 0:
    os.close(writer)
    sock.close()
    os.read(reader, 1)  # until the parent has ended
    os._exit(0)
sock.sendall(b"reset me")
try:
    sock.recv(1)
except ConnectionResetError:
    print("reset")
"""


def test_a_forked_child_does_not_keep_the_parents_connections_open(relay: RelayThread, listener: socket.socket) -> None:
    def serve() -> None:
        with accept(listener) as far:
            far.recv(1, socket.MSG_PEEK)  # leaves the data unread, so that closing resets the connection

    thread = threading.Thread(target=serve)
    thread.start()
    done = run_python(relay, FORK_AND_RESET, str(listener.getsockname()[1]))
    thread.join(DEADLINE_S)
    assert done.stdout == "reset\n"


EXIT = """
import socket, ssl, sys, tunnel_client
address = "db.internal", int(sys.argv[1])
kept = tunnel_client.create_connection(address, timeout=60)
detached = tunnel_client.create_connection(address, timeout=None).detach()
kept.sendall(b"k" * 3_000_000)
with socket.socket(fileno=detached) as sock:
    sock.sendall(b"d" * 3_000_000)
    sock.detach()
tunnel_client.create_connection(address, timeout=60).sendall(b"forgotten")
"""


def test_no_data_is_lost_when_the_interpreter_exits(relay: RelayThread, listener: socket.socket) -> None:
    received: list[bytes] = []

    def serve() -> None:
        received.extend(map(read_all, [accept(listener) for _ in range(3)]))

    thread = threading.Thread(target=serve)
    thread.start()
    done = run_python(relay, QUIET + EXIT, str(listener.getsockname()[1]))
    thread.join(DEADLINE_S)
    assert [(data[:1], len(data)) for data in received] == [(b"k", 3_000_000), (b"d", 3_000_000), (b"f", 9)]
    assert done.stderr == ""


CHILDREN = """
import multiprocessing, sys, tunnel_client
def work():
    sock = tunnel_client.create_connection(("db.internal", int(sys.argv[1])), timeout=60)
    sock.sendall(b"c" * 1_000_000)
    globals()["kept"] = sock
process = multiprocessing.get_context("fork").Process(target=work)
process.start()
process.join()
"""


def test_no_data_is_lost_when_a_multiprocessing_process_exits(relay: RelayThread, listener: socket.socket) -> None:
    received: list[bytes] = []
    thread = threading.Thread(target=lambda: received.append(read_all(accept(listener))))
    thread.start()
    run_python(relay, QUIET + CHILDREN, str(listener.getsockname()[1]))
    thread.join(DEADLINE_S)
    assert [len(data) for data in received] == [1_000_000]


STUCK = """
import sys, tunnel_client
runtime = tunnel_client.Runtime(linger=1.0)
sock = tunnel_client.create_connection(("db.internal", int(sys.argv[1])), timeout=60, runtime=runtime)
sock.settimeout(0.5)
try:
    sock.sendall(bytes(64_000_000))
except TimeoutError:
    print("stuck")
"""


def test_the_exit_of_the_interpreter_has_a_time_limit(relay: RelayThread, listener: socket.socket) -> None:
    done = run_python(relay, STUCK, str(listener.getsockname()[1]))
    assert done.stdout == "stuck\n"
    with accept(listener) as far, pytest.raises(ConnectionResetError):
        read_all(far)


NEVER_CONNECTED = """
import sys, threading, tunnel_client
tunnel_client.Runtime()
kept = tunnel_client.Runtime()
assert kept.stats() is None
tunnel_client.TunnelSocket(runtime=kept).close()
closed = tunnel_client.Runtime()
closed.close()
if sys.argv[1:]:
    try:
        tunnel_client.create_connection(("nosuch.internal", 80), timeout=60)
    except OSError as error:
        print(type(error).__name__)
print(sum(thread.name == "tunnel" for thread in threading.enumerate()))
"""


@pytest.mark.parametrize(("arguments", "said"), [((), "0\n"), (("try",), "ResolveError\n1\n")], ids=["idle", "tried"])
def test_an_interpreter_that_never_connected_exits_without_a_message(
    relay: RelayThread, arguments: tuple[str, ...], said: str
) -> None:
    """Runtimes that never connect start no loop thread. After a failed connect, this thread neither delays
    the exit nor prints."""
    done = run_python(relay, NEVER_CONNECTED, *arguments)
    assert (done.stdout, done.stderr) == (said, "")


CONFIGURED = """
import gc, sys, time, tunnel_client
from tunnel_client.sockets import runtime
address = ("db.internal", int(sys.argv[1]))
tunnel_client.configure(carrier="poll")
with tunnel_client.create_connection(address, timeout=60) as first:
    tunnel_client.configure(carrier="auto")
    gc.collect()
    with tunnel_client.create_connection(address, timeout=60) as second:
        first.sendall(b"first")
        second.sendall(b"second")
    tunnel_client.configure(carrier="poll")
tunnel_client.create_connection(address, timeout=60).close()
ends = time.monotonic() + 60
while runtime._retired and time.monotonic() < ends:
    time.sleep(0.01)
gc.collect()
print(len(runtime._retired))
"""


def test_a_second_configure_leaves_existing_sockets_their_relay(relay: RelayThread, listener: socket.socket) -> None:
    received: list[bytes] = []

    def serve() -> None:
        received.extend(map(read_all, [accept(listener) for _ in range(3)]))

    thread = threading.Thread(target=serve)
    thread.start()
    done = run_python(relay, CONFIGURED, str(listener.getsockname()[1]))
    thread.join(DEADLINE_S)
    assert received == [b"first", b"second", b""]
    assert done.stdout == "0\n"  # the replaced runtimes have closed their attachments by themselves
    assert done.stderr == ""


GEVENT = """
from gevent import monkey
monkey.patch_all()
import asyncio, socket, sys, threading
import gevent
import tunnel_client
from tunnel_client.sockets.loop_thread import loop_thread

def talk(number):
    with tunnel_client.create_connection("reports", timeout=60) as sock:
        assert isinstance(sock, socket.socket)
        for word in (b"%03d" % number, b"x" * 100_000):
            sock.sendall(word)
            got = b""
            while len(got) < len(word):
                got += sock.recv(65536)
            assert got == word
        return number

ticks = 0
def tick():
    global ticks
    while True:
        gevent.sleep(0.001)
        ticks += 1

ticker = gevent.spawn(tick)
jobs = [gevent.spawn(talk, number) for number in range(20)]
gevent.joinall(jobs, raise_error=True)
waiting = tunnel_client.TunnelSocket()
waiting.setblocking(False)
assert waiting.connect_ex(("reports", None)) == 115
from gevent import select
assert select.select([], [waiting], [], 60)[1] == [waiting]
assert waiting.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) == 0
waiting.close()
ticker.kill()
print(sum(job.value for job in jobs), type(loop_thread().loop).__module__, ticks > 0)
"""


def test_greenlets_of_gevent_share_the_loop_thread(relay: RelayThread) -> None:
    pytest.importorskip("gevent")
    done = run_python(relay, QUIET + GEVENT)
    assert done.stdout == "190 asyncio.unix_events True\n"


EVENTLET = """
import eventlet
eventlet.monkey_patch()
import tunnel_client
def attempts():
    yield lambda: tunnel_client.create_connection("reports", timeout=5)
    yield lambda: tunnel_client.create_connection(("db.internal", 80))
    yield lambda: tunnel_client.TunnelSocket().connect(("db.internal", 80))
    yield lambda: tunnel_client.patch(["*.internal"]).__enter__()
for attempt in attempts():
    try:
        attempt()
    except OSError as error:
        print(error)
print(tunnel_client.TunnelSocket().connect_ex(("db.internal", 80)))
"""


def test_eventlet_is_refused_because_it_leaves_no_thread_to_the_loop(relay: RelayThread) -> None:
    done = run_python(relay, "import warnings; warnings.simplefilter('ignore')" + EVENTLET)
    refusal = (
        f"[Errno {errno.EOPNOTSUPP}] eventlet has replaced threads and sockets in this process, so it cannot carry a "
        "tunnel itself: start the program with `tunnel run`, or use `tunnel forward`\n"
    )
    assert done.stdout == 4 * refusal + f"{errno.EOPNOTSUPP}\n"


@pytest.mark.filterwarnings("ignore:unclosed <socket.socket:ResourceWarning")  # of connects that never began
def test_a_connect_ends_at_its_timeout_even_if_the_loop_is_stuck(
    relay: RelayThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel_client.sockets.runtime.GRACE_S", 0.0)
    runtime = Runtime(relay.settings)
    _, thread = connecting(runtime).use()
    stuck, release = threading.Event(), threading.Event()

    def block() -> None:
        stuck.set()
        release.wait(DEADLINE_S)

    thread.loop.call_soon_threadsafe(block)
    try:
        assert stuck.wait(DEADLINE_S)
        with pytest.raises(TimeoutError, match=r"^db.internal:80: no answer within 0.01 s$"):
            create_connection(("db.internal", 80), timeout=0.01, runtime=runtime)
        with pytest.raises(TimeoutError, match=r"^reports: no answer within 0.01 s$"):
            create_connection("reports", timeout=0.01, runtime=runtime)
    finally:
        release.set()
    with create_connection("reports", timeout=DEADLINE_S, runtime=runtime) as sock:
        sock.sendall(b"x")
        assert sock.recv(1) == b"x"
    runtime.close()
