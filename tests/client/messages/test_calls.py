"""Calls of many threads over one blocking socket: answers, timeouts, cancellation, closing; the table of channels."""

from __future__ import annotations

import asyncio
import os
import socket
import ssl
import threading
import time
from collections.abc import Callable
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from tests.client.messages.rig import DEADLINE_S, Pair, ends
from tests.support.loops import in_loop
from tunnel.messages import (
    CallChannel,
    ChannelClosedError,
    MessageTooLargeError,
    RemoteCallError,
    Request,
    Response,
)
from tunnel.messages.calls.frames import FRAME_BYTES_MAX
from tunnel_client import Runtime, create_connection
from tunnel_client.messages import BlockingChannel, BlockingTable
from tunnel_client.sockets.loop_thread import loop_thread

__all__ = ["ends"]

ECHO, FAIL, WAIT = 1, 2, 3


class Gate:
    """A handler of the peer that waits until the test opens it."""

    def __init__(self) -> None:
        self.came = threading.Semaphore(0)
        self.open = threading.Event()

    def __call__(self, request: Request) -> Response:
        self.came.release()
        assert self.open.wait(DEADLINE_S)
        return Response(b"opened")


def answer(request: Request) -> Response:
    return Response(request.body, request.fields)


def fail(request: Request) -> Response:
    raise RemoteCallError(100, f"no {request.body.decode()} here")


def within_deadline(is_so: Callable[[], bool]) -> None:
    """Wait until the condition holds; fail at the deadline, which only a hanging test reaches."""
    end = time.monotonic() + DEADLINE_S
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.001)


def test_many_threads_call_over_one_connection_and_each_gets_its_own_answer(ends: Pair) -> None:
    near, far = ends
    with BlockingChannel(far, {ECHO: answer}), BlockingChannel(near) as channel:

        def ask(number: int) -> bool:
            body = f"{number} ".encode() * (1 + number * 37 % 900)
            response = channel.call(ECHO, body, {"number": str(number)}, timeout=DEADLINE_S)
            return (response.body, response.fields) == (body, {"number": str(number)})

        with ThreadPoolExecutor(16) as threads:
            assert all(threads.map(ask, range(400)))


def test_both_ends_call_and_the_handler_may_itself_call_back(ends: Pair) -> None:
    near, far = ends
    with BlockingChannel(near, {ECHO: answer}) as caller:

        def ask_back(request: Request) -> Response:
            return Response(b"you said " + answerer.call(ECHO, request.body, timeout=DEADLINE_S).data)

        with BlockingChannel(far, {WAIT: ask_back}) as answerer:
            assert caller.call(WAIT, b"yes", timeout=DEADLINE_S).body == b"you said yes"


def test_errors_of_the_handler_and_of_the_caller_are_raised_and_the_channel_goes_on(ends: Pair) -> None:
    near, far = ends
    with BlockingChannel(far, {ECHO: answer, FAIL: fail}), BlockingChannel(near) as channel:
        with pytest.raises(RemoteCallError, match="no tea here") as caught:
            channel.call(FAIL, b"tea", timeout=DEADLINE_S)
        assert caught.value.code == 100
        with pytest.raises(MessageTooLargeError):
            channel.call(ECHO, bytes(FRAME_BYTES_MAX))
        assert channel.call(ECHO, b"on", timeout=DEADLINE_S).body == b"on"


def test_a_call_that_gets_no_answer_times_out_and_the_others_do_not(ends: Pair) -> None:
    near, far = ends
    gate = Gate()
    with BlockingChannel(far, {WAIT: gate, ECHO: answer}), BlockingChannel(near) as channel:
        with pytest.raises(TimeoutError, match=r"no answer to the request of code 3 within 0\.05 s"):
            channel.call(WAIT, timeout=0.05)
        assert channel.call(ECHO, b"still here", timeout=DEADLINE_S).body == b"still here"
        gate.open.set()


def test_a_cancelled_call_that_waits_for_a_thread_of_the_peer_is_never_handled(ends: Pair) -> None:
    near, far = ends
    gate = Gate()
    handled: list[bytes] = []

    def note(request: Request) -> Response:
        handled.append(request.body)
        return Response()

    with BlockingChannel(far, {WAIT: gate, ECHO: note}, threads=1), BlockingChannel(near) as channel:
        waiting = channel.submit(WAIT, timeout=DEADLINE_S)
        assert gate.came.acquire(timeout=DEADLINE_S)
        dropped = channel.submit(ECHO, b"dropped", timeout=DEADLINE_S)
        kept = channel.submit(ECHO, b"kept", timeout=DEADLINE_S)
        assert dropped.cancel()
        with pytest.raises(CancelledError):
            dropped.result(DEADLINE_S)
        for _ in range(2):  # the cancellation leaves at the latest after the first call, and before the second
            with pytest.raises(RemoteCallError, match="no handler"):
                channel.call(9, timeout=DEADLINE_S)
        gate.open.set()
        assert waiting.result(DEADLINE_S).body == b"opened"
        kept.result(DEADLINE_S)
        assert handled == [b"kept"]


def test_closing_in_one_thread_ends_the_calls_of_all_others(ends: Pair) -> None:
    near, far = ends
    gate = Gate()
    with BlockingChannel(far, {WAIT: gate}) as peer, ThreadPoolExecutor(4) as threads:
        channel = BlockingChannel(near)
        calls = [threads.submit(channel.call, WAIT, timeout=None) for _ in range(4)]
        for _ in calls:
            assert gate.came.acquire(timeout=DEADLINE_S)
        channel.close()
        for call in calls:
            with pytest.raises(ChannelClosedError, match="may have been handled"):
                call.result(DEADLINE_S)
        channel.close()
        assert not channel.is_open
        with pytest.raises(ChannelClosedError, match="open a new channel"):
            channel.call(WAIT)
        assert peer.wait_closed(DEADLINE_S)
        assert peer.error is None
        gate.open.set()


def test_a_peer_that_goes_away_ends_the_calls_that_wait_for_it(ends: Pair) -> None:
    near, far = ends
    with BlockingChannel(near) as channel:
        call = channel.submit(ECHO, timeout=None)
        far.recv(100)
        assert not channel.wait_closed(0.01)
        far.close()
        with pytest.raises(ChannelClosedError):
            call.result(DEADLINE_S)


def test_one_way_messages_arrive_although_the_channel_is_closed_at_once(ends: Pair) -> None:
    near, far = ends
    bodies: list[bytes] = []

    def take(request: Request) -> None:
        bodies.append(request.body)

    with BlockingChannel(far, {ECHO: take}, threads=1):
        with BlockingChannel(near) as channel:
            for _ in range(20):
                channel.send(ECHO, bytes(100_000))
        within_deadline(lambda: len(bodies) == 20)
    assert set(bodies) == {bytes(100_000)}


def test_a_forked_child_learns_that_the_channel_belongs_to_its_parent(ends: Pair) -> None:
    near, far = ends
    with BlockingChannel(far, {ECHO: answer}), BlockingChannel(near) as channel:
        assert channel.call(ECHO, b"parent", timeout=DEADLINE_S).body == b"parent"
        child = os.fork()
        if child == 0:
            code = 1
            try:
                channel.call(ECHO, b"child", timeout=DEADLINE_S)
            except ChannelClosedError as error:
                code = 42 if "before the fork" in str(error) else 2
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 42
        assert channel.call(ECHO, b"parent", timeout=DEADLINE_S).body == b"parent"


def test_the_tunnels_own_threads_may_not_wait_for_messages() -> None:
    near, far = socket.socketpair()
    with far, BlockingChannel(near) as channel:

        async def ask() -> None:
            channel.call(ECHO)

        with pytest.raises(RuntimeError, match="call this from your threads"):
            loop_thread().run(ask())


def test_an_ssl_socket_is_refused_with_advice() -> None:
    near, far = socket.socketpair()
    with (
        far,
        ssl.create_default_context().wrap_socket(near, server_hostname="x", do_handshake_on_connect=False) as secured,
        pytest.raises(TypeError, match="let the tunnel encrypt"),
    ):
        BlockingChannel(secured)


@in_loop
async def test_a_call_from_a_foreign_thread_fails_and_its_error_names_the_blocking_channel() -> None:
    near, far = socket.socketpair()
    with far:
        async with CallChannel(*await asyncio.open_connection(sock=near)) as channel:
            with pytest.raises(RuntimeError, match=r"tunnel_client\.messages\.BlockingChannel"):
                await asyncio.to_thread(asyncio.run, channel.call(ECHO))


def test_a_table_dials_an_address_once_for_all_threads_and_again_when_the_channel_is_dead(runtime: Runtime) -> None:
    peers: list[BlockingChannel] = []
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            for _ in range(2):
                peers.append(BlockingChannel(listener.accept()[0], {ECHO: answer}))

        accepting = threading.Thread(target=accept)
        accepting.start()
        host, port = listener.getsockname()
        address = f"{host}:{port}"
        with BlockingTable(
            lambda _: create_connection((host, port), DEADLINE_S, runtime=runtime), connect_timeout=DEADLINE_S
        ) as table:
            with ThreadPoolExecutor(8) as threads:
                calls = [threads.submit(table.call, address, ECHO, str(n).encode()) for n in range(50)]
                assert [call.result(DEADLINE_S).body for call in calls] == [str(n).encode() for n in range(50)]
            assert len(peers) == 1
            first = table.runner.run(table.inner.channel(address))
            peers[0].close()
            table.runner.run(first.wait_closed())
            assert table.call(address, ECHO, b"again").body == b"again"
            accepting.join(DEADLINE_S)
            assert len(peers) == 2
    peers[1].close()


def test_a_socket_that_connects_after_its_caller_gave_up_is_closed() -> None:
    near, far = socket.socketpair()
    connect = threading.Event()

    def slow(address: str) -> socket.socket:
        assert connect.wait(DEADLINE_S)
        return near

    with BlockingTable(slow, connect_timeout=0.05) as table:
        with pytest.raises(TimeoutError, match=r"no connection within 0\.05 s"):
            table.call("somewhere:1", ECHO)
        connect.set()
        far.settimeout(DEADLINE_S)
        assert far.recv(1) == b""
    far.close()
