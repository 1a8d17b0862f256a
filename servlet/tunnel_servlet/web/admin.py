"""The admin listener: liveness, readiness, the relay's state, metrics, draining. It must not be public."""

import time
from collections.abc import Callable
from ipaddress import ip_address

import msgspec
from aiohttp import web

from tunnel.clock import now_us
from tunnel_servlet.switch.stats import RateWait, SwitchStats
from tunnel_servlet.web.metrics import METRICS_TYPE, render_metrics
from tunnel_servlet.web.relay import Relay
from tunnel_servlet.web.reloading import Reloads

__all__ = ["ADMIN_HEADER", "RelayState", "create_admin", "state_of"]

ADMIN_HEADER = "Tunnel-Admin"  # a browser sends it to another origin only after a preflight request, which fails
_HEADERS = {"Cache-Control": "no-store"}


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


def create_admin(relay: Relay, drain: Callable[[float | None], None]) -> web.Application:
    """Return the application of the admin listener.

    It calls `drain(seconds)` to start draining; None stands for the configured time.
    """
    began_s = time.monotonic()

    async def live(_: web.Request) -> web.Response:
        return web.Response(text="live\n", headers=_HEADERS)

    async def ready(_: web.Request) -> web.Response:
        is_ready = relay.is_ready and not relay.is_draining
        text = "ready\n" if is_ready else "draining\n" if relay.is_draining else "not ready\n"
        return web.Response(status=200 if is_ready else 503, text=text, headers=_HEADERS)

    async def state(_: web.Request) -> web.Response:
        body = msgspec.json.encode(state_of(relay, began_s))
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    async def metrics(_: web.Request) -> web.Response:
        switch = relay.host.switch
        page = render_metrics(relay.trace, relay.reloads, switch.stats().counters, switch.rate_waits(now_us()))
        return web.Response(body=page.encode(), headers={**_HEADERS, "Content-Type": METRICS_TYPE})

    async def order_drain(request: web.Request) -> web.Response:
        if ADMIN_HEADER not in request.headers or not _is_loopback(request.remote):
            return web.Response(
                status=403, text=f"a drain request must come from this machine and have the header {ADMIN_HEADER}\n"
            )
        seconds = request.query.get("timeout", "")
        if seconds and not (seconds.isascii() and seconds.isdigit()):
            return web.Response(status=400, text="timeout must be a whole number of seconds\n")
        drain(float(seconds) if seconds else None)
        return web.Response(status=202, text="draining\n", headers=_HEADERS)

    app = web.Application()
    app.router.add_get("/livez", live)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/state", state)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/drain", order_drain)
    return app


def _is_loopback(address: str | None) -> bool:
    try:
        return ip_address(address or "").is_loopback
    except ValueError:
        return False
