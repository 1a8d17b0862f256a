"""Serve one client connection: its exchanges one after the other, and its end."""

import asyncio
import contextlib

import h11

from loadtests.faultproxy.answers import send_status
from loadtests.faultproxy.context import Context, Upstream
from loadtests.faultproxy.exchange import Exchange
from loadtests.faultproxy.faults import FaultKind, plan_exchange
from loadtests.faultproxy.http import ClientError, HttpSide
from loadtests.faultproxy.options import IdleCut
from loadtests.faultproxy.responder import ConnectionOver
from loadtests.faultproxy.stream import Stream
from tunnel.traces.record import TraceFault

__all__ = ["serve_connection"]


async def serve_connection(context: Context, stream: Stream) -> None:
    """Serve a client's connection until it ends, then close it."""
    context.counts.connections += 1
    client, upstream = HttpSide(stream, h11.SERVER), Upstream(context)
    idle = None if context.options.idle_cut is None else _IdleWatch(context, stream, context.options.idle_cut)
    try:
        await _serve(context, client, upstream)
    except ConnectionOver:
        pass
    except ClientError as error:
        if error.status and client.h11.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            context.counts.bad_requests += 1
            with contextlib.suppress(ClientError):
                await send_status(client, b"GET", error.status, "the proxy cannot parse the request")
    finally:
        if idle is not None:
            idle.stop()
        upstream.close()
        stream.close()


async def _serve(context: Context, client: HttpSide, upstream: Upstream) -> None:
    while isinstance(request := await client.next_event(), h11.Request):
        number = context.next_exchange()
        exchange = Exchange(context, client, upstream, request, plan_exchange(context.options, number))
        await exchange.run()
        if client.stream.is_muted:
            with contextlib.suppress(ConnectionError):
                await client.stream.swallow()
            return
        if client.h11.our_state is not h11.DONE or client.h11.their_state is not h11.DONE:
            return
        client.h11.start_next_cycle()


class _IdleWatch:
    """Cuts the connection when no byte has moved for too long.

    During a blackhole, the stream's gate is shut (`gate.py`). A cut that is due waits until the gate opens, because
    otherwise the client would notice the cut during the blackhole.
    """

    def __init__(self, context: Context, stream: Stream, option: IdleCut) -> None:
        self._context = context
        self._stream = stream
        self._option = option
        self._loop = asyncio.get_running_loop()
        self._timer = self._arm()
        self._is_over = False

    def _arm(self) -> asyncio.TimerHandle:
        return self._loop.call_at(self._stream.moved_at + self._option.after_us / 1e6, self._due)

    def _due(self) -> None:
        if self._loop.time() < self._stream.moved_at + self._option.after_us / 1e6:
            self._timer = self._arm()
        else:
            self._stream.gate.call(self._cut)

    def _cut(self) -> None:
        if self._is_over or self._stream.is_closed:
            return
        silent = "silent" if self._option.silent else ""
        self._context.recorder.fault(FaultKind.IDLE_CUT, TraceFault.CONNECTION_RESET, text=silent)
        if self._option.silent:
            self._stream.mute()
        else:
            self._stream.reset()

    def stop(self) -> None:
        """Stop watching, because the connection is being closed for another reason."""
        self._is_over = True
        self._timer.cancel()
