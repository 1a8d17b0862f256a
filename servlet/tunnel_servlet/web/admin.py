"""The admin listener: liveness, readiness, the relay's state, metrics, draining, connections. It must not be public."""

import time
from collections.abc import Callable

import msgspec
from aiohttp import web

from tunnel.metrics.page import PAGE_TYPE, MissingLibraryError
from tunnel.system.clock import now_us
from tunnel_servlet.access.instants import SECONDS_DIGITS_MAX, is_seconds
from tunnel_servlet.switch.stats import RateWait, SwitchStats
from tunnel_servlet.web.drain_outcome import DrainWatch
from tunnel_servlet.web.live.api import add_tables
from tunnel_servlet.web.live.page import add_page
from tunnel_servlet.web.metrics import RelayMetrics
from tunnel_servlet.web.operator_access import NO_STORE, order_of_operator, require_operator, source_of, without_pages
from tunnel_servlet.web.relay import Relay
from tunnel_servlet.web.reloading import Reloads

__all__ = ["RelayState", "create_admin", "state_of"]


class RelayState(msgspec.Struct, frozen=True):
    """The content of /state. Of users, targets and ids it contains only those that the configuration names: in `rates`,
    and in the error of the last reload."""

    ready: bool
    draining: bool
    uptime_s: int
    tokens: int
    reloads: Reloads
    requests_waiting: int
    rates: list[RateWait]
    switch: SwitchStats


def state_of(relay: Relay, began_s: float) -> RelayState:
    """Return the relay's present state. `began_s` is the monotonic time from which the uptime counts."""
    host = relay.host
    return RelayState(
        ready=relay.is_ready and not relay.is_draining,
        draining=relay.is_draining,
        uptime_s=int(time.monotonic() - began_s),
        tokens=len(relay.tokens),
        reloads=relay.reloads,
        requests_waiting=host.waiting,
        rates=host.switch.rate_waits(now_us()),
        switch=host.switch.stats(),
    )


def create_admin(
    relay: Relay,
    drain: Callable[[float | None], None],
    metrics: RelayMetrics | None = None,
    watch: DrainWatch | None = None,
) -> web.Application:
    """Return the application of the admin listener.

    It calls `drain(seconds)` to start draining; None stands for the configured time. `watch` says what that has done.
    """
    began_s = time.monotonic()
    measured = metrics or RelayMetrics(relay)

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="live\n", headers=NO_STORE)

    async def ready(_: web.Request) -> web.Response:
        closed = relay.audit.why_closed("")
        is_ready = relay.is_ready and not relay.is_draining and not closed
        text = "ready\n" if is_ready else "draining\n" if relay.is_draining else f"not ready {closed}".strip() + "\n"
        return web.Response(status=200 if is_ready else 503, text=text, headers=NO_STORE)

    async def state(request: web.Request) -> web.Response:
        require_operator(relay, request, is_for_all=relay.config.is_open)
        body = msgspec.json.encode(state_of(relay, began_s))
        return web.Response(body=body, content_type="application/json", headers=NO_STORE)

    async def show_metrics(_: web.Request) -> web.Response:
        try:
            page = measured.page()
        except MissingLibraryError as error:
            return web.Response(status=501, text=f"{error}\n", headers=NO_STORE)
        return web.Response(body=page, headers={**NO_STORE, "Content-Type": PAGE_TYPE})

    async def order_drain(request: web.Request) -> web.StreamResponse:
        order_of_operator(relay, request, "drain")
        seconds = request.query.get("timeout", "")
        if seconds and not is_seconds(seconds):
            text = f"timeout must be a whole number of seconds of at most {SECONDS_DIGITS_MAX} digits\n"
            return web.Response(status=400, text=text, headers=NO_STORE)
        relay.audit.note_act("drain", source_of(request))
        drain(float(seconds) if seconds else None)
        if watch is None or request.query.get("wait") != "1":
            return web.Response(status=202, text="draining\n", headers=NO_STORE)
        answer = web.StreamResponse(headers={**NO_STORE, "Content-Type": "application/json"})
        await answer.prepare(request)  # at once: the body comes when the relay has drained
        await answer.write(msgspec.json.encode(await watch.outcome()))
        await answer.write_eof()
        return answer

    app = web.Application(middlewares=[without_pages])
    app.router.add_get("/livez", live)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/state", state)
    app.router.add_get("/metrics", show_metrics)
    app.router.add_post("/drain", order_drain)
    add_tables(app, relay)
    add_page(app)
    return app
