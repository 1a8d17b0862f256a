"""Moves raw bytes in both directions, after CONNECT or an Upgrade."""

import asyncio
import contextlib
import dataclasses

from loadtests.faultproxy.context import Context
from loadtests.faultproxy.faults import BodyPlan, ExchangePlan, Side
from loadtests.faultproxy.mangle import Mangler
from loadtests.faultproxy.marks import mark_flips, mark_truncation
from loadtests.faultproxy.sources import DelayLine, Source
from loadtests.faultproxy.stream import Stream

__all__ = ["run_tunnel"]


class _CutError(Exception):
    """The plan cuts the tunnel here."""


async def run_tunnel(context: Context, client: Stream, upstream: Stream, plan: ExchangePlan) -> None:
    """Move bytes until both directions have ended.

    The end of one direction is forwarded without ending the other; if one connection breaks, both are reset.
    """
    context.counts.tunnels += 1
    context.tunnels[client] = upstream
    pumps = [
        asyncio.ensure_future(_pump(context, client, upstream, plan, Side.REQUEST)),
        asyncio.ensure_future(_pump(context, upstream, client, plan, Side.RESPONSE)),
    ]
    try:
        await asyncio.gather(*pumps)
    except _CutError:
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


async def _pump(context: Context, source: Stream, destination: Stream, plan: ExchangePlan, side: Side) -> None:
    body_plan = plan.request if side is Side.REQUEST else plan.response
    async with contextlib.AsyncExitStack() as stack:
        read: Source = _ending(source)
        if body_plan.delay_us:
            read = await stack.enter_async_context(DelayLine(read, body_plan.delay_us))
        await _move(context, read, destination, plan.number, body_plan, side)


def _ending(stream: Stream) -> Source:
    async def read() -> bytes | None:
        return await stream.read() or None

    return read


async def _move(context: Context, read: Source, destination: Stream, number: int, plan: BodyPlan, side: Side) -> None:
    # A tunnel declares no length, so a shortened one could not look complete.
    mangler = Mangler(dataclasses.replace(plan, is_short=False), None)
    while (piece := await read()) is not None:
        if side is Side.REQUEST:
            context.counts.request_bytes += len(piece)
        else:
            context.counts.response_bytes += len(piece)
        if not mangler.is_harmless:
            piece = mangler.feed(piece)
            mark_flips(context.recorder, mangler, number, side)
        destination.write(piece)
        await destination.drain()
        if mangler.ended:
            mark_truncation(context.recorder, mangler, number, side)
            raise _CutError
    destination.finish()
