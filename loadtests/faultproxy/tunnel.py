"""Moves raw bytes in both directions, after CONNECT or an Upgrade."""

import asyncio
import contextlib
import dataclasses

from loadtests.faultproxy.context import Context
from loadtests.faultproxy.faults import BodyPlan, ExchangePlan, Side
from loadtests.faultproxy.frames import CloseError, CutError, Frames
from loadtests.faultproxy.mangle import Mangler
from loadtests.faultproxy.marks import mark_flips, mark_truncation
from loadtests.faultproxy.options import FrameFaults
from loadtests.faultproxy.sources import DelayLine, Source
from loadtests.faultproxy.stream import Stream

__all__ = ["run_tunnel"]

_FAREWELL_S = 1.0  # how long each side may take to end its connection after a close frame


async def run_tunnel(
    context: Context, client: Stream, upstream: Stream, plan: ExchangePlan, *, is_websocket: bool = False
) -> None:
    """Move bytes until both directions have ended.

    The end of one direction is forwarded without ending the other; if one connection breaks, both are reset.
    """
    frames = context.options.frames if is_websocket else FrameFaults()
    context.counts.tunnels += 1
    context.tunnels[client] = upstream
    pumps = [
        asyncio.ensure_future(_pump(context, client, upstream, plan, Side.REQUEST, frames)),
        asyncio.ensure_future(_pump(context, upstream, client, plan, Side.RESPONSE, frames)),
    ]
    try:
        await asyncio.gather(*pumps)
    except CloseError:
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        await asyncio.gather(_end_gracefully(client), _end_gracefully(upstream))
        client.close()
    except CutError:
        client.close()
    except ConnectionError:
        client.reset()
        upstream.reset()
    finally:
        del context.tunnels[client]
        for pump in pumps:
            pump.cancel()
        await asyncio.gather(*pumps, return_exceptions=True)
        upstream.close()


async def _pump(
    context: Context, source: Stream, destination: Stream, plan: ExchangePlan, side: Side, faults: FrameFaults
) -> None:
    frames = Frames(context, faults, destination, plan.number, side) if faults.are_possible else None
    body_plan = plan.request if side is Side.REQUEST else plan.response
    async with contextlib.AsyncExitStack() as stack:
        read: Source = _ending(source)
        if body_plan.delay_us:
            read = await stack.enter_async_context(DelayLine(read, body_plan.delay_us))
        if frames is not None:
            stack.callback(frames.stop)
        await _move(context, read, destination, plan.number, body_plan, side, frames)


async def _end_gracefully(stream: Stream) -> None:
    """Send everything written, end our direction, and wait until the peer ends its own, for at most `_FAREWELL_S`.

    To close while the peer still sends would cause a reset, which destroys bytes on the way.
    """
    stream.finish()
    with contextlib.suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(_FAREWELL_S):
            await stream.swallow()


def _ending(stream: Stream) -> Source:
    async def read() -> bytes | None:
        return await stream.read() or None

    return read


async def _move(
    context: Context,
    read: Source,
    destination: Stream,
    number: int,
    plan: BodyPlan,
    side: Side,
    frames: Frames | None,
) -> None:
    # `is_short` cuts a body and declares the shorter length, so that it looks complete. A tunnel declares no length, so
    # here every cut ends both connections.
    mangler = Mangler(dataclasses.replace(plan, is_short=False), None)
    while (piece := await read()) is not None:
        if side is Side.REQUEST:
            context.counts.request_bytes += len(piece)
        else:
            context.counts.response_bytes += len(piece)
        if not mangler.is_harmless:
            piece = mangler.feed(piece)
            mark_flips(context.recorder, mangler, number, side)
        if frames is not None:
            await frames.feed(piece)
        else:
            destination.write(piece)
            await destination.drain()
        if mangler.ended:
            mark_truncation(context.recorder, mangler, number, side)
            raise CutError
    if frames is not None:
        frames.finish()
    destination.finish()
