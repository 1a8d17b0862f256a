"""The admin listener: liveness, readiness, the relay's state, metrics, draining. It must not be public.

Other users of this machine can connect to it, and so can web pages in their browsers. So what changes something or
tells about users needs the admin secret, and no path answers a web page.
"""

import re
import time
from collections.abc import Awaitable, Callable
from ipaddress import IPv6Address, ip_address

import msgspec
from aiohttp import web

from tunnel.clock import now_us
from tunnel_servlet.switch.stats import RateWait, SwitchStats
from tunnel_servlet.web.metrics import METRICS_TYPE, render_metrics
from tunnel_servlet.web.relay import Relay
from tunnel_servlet.web.reloading import Reloads

__all__ = ["ADMIN_HEADER", "RelayState", "create_admin", "state_of"]

ADMIN_HEADER = "Tunnel-Admin"  # its value is the admin secret
_HEADERS = {"Cache-Control": "no-store"}
_HOST = re.compile(r"(localhost|[0-9.]+|\[[0-9a-f:.]+\])(?::[0-9]*)?", re.IGNORECASE)
_TERM = "send SIGTERM to the relay to drain it"
_COMMANDS = "run `tunnel-relay drain` or `tunnel-relay state`, with -c FILE, as the user who may read the tokens file"


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

    async def state(request: web.Request) -> web.Response:
        why = _why_not_operator(relay, request, is_for_all=relay.config.is_open)
        if why:
            return _refused(why)
        body = msgspec.json.encode(state_of(relay, began_s))
        return web.Response(body=body, content_type="application/json", headers=_HEADERS)

    async def metrics(_: web.Request) -> web.Response:
        switch = relay.host.switch
        page = render_metrics(relay.trace, relay.reloads, switch.stats().counters, switch.rate_waits(now_us()))
        return web.Response(body=page.encode(), headers={**_HEADERS, "Content-Type": METRICS_TYPE})

    async def order_drain(request: web.Request) -> web.Response:
        why = _why_not_operator(relay, request)
        if why:
            return _refused(why)
        seconds = request.query.get("timeout", "")
        if seconds and not (seconds.isascii() and seconds.isdigit()):
            return web.Response(status=400, text="timeout must be a whole number of seconds\n")
        drain(float(seconds) if seconds else None)
        return web.Response(status=202, text="draining\n", headers=_HEADERS)

    app = web.Application(middlewares=[_without_pages])
    app.router.add_get("/livez", live)
    app.router.add_get("/readyz", ready)
    app.router.add_get("/state", state)
    app.router.add_get("/metrics", metrics)
    app.router.add_post("/drain", order_drain)
    return app


@web.middleware
async def _without_pages(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse what a browser sends for a web page: an Origin, or the name of the page's server as Host.

    Such a name may lead to this machine (DNS rebinding). Requests from other machines may name any Host: probes of
    Kubernetes name the address of the pod.
    """
    if "Origin" in request.headers:
        return _refused("the admin listener does not answer web pages")
    if _is_loopback(request.remote) and not all(map(_is_local_host, request.headers.getall("Host", []))):
        return _refused("a request from this machine must name localhost, 127.0.0.1 or [::1] as its Host")
    return await handler(request)


def _why_not_operator(relay: Relay, request: web.Request, *, is_for_all: bool = False) -> str:
    """Say why the request is refused, and what to do; return an empty text if it comes from the operator.

    `is_for_all`: everybody on this machine may make it.
    """
    if not _is_loopback(request.remote):
        return "a request for the state or to drain must come from this machine, by way of loopback"
    secret = request.headers.get(ADMIN_HEADER, "")
    if is_for_all or relay.is_operator(secret):
        return ""
    if relay.admin_secret:
        return f"the header {ADMIN_HEADER} must hold the secret in the relay's tokens file: {_COMMANDS}, or {_TERM}"
    if relay.config.is_open:
        return f"an open relay without an admin secret in a tokens file does not drain on request: {_TERM}"
    return (
        "the relay's tokens file has no admin secret yet: the next `tunnel-relay user add` or `rotate` writes one; "
        f"or {_TERM}"
    )


def _refused(why: str) -> web.Response:
    return web.Response(status=403, text=f"{why}\n", headers=_HEADERS)


def _is_local_host(host: str) -> bool:
    found = _HOST.fullmatch(host)
    return found is not None and (found[1].lower() == "localhost" or _is_loopback(found[1].strip("[]")))


def _is_loopback(address: str | None) -> bool:
    try:
        found = ip_address(address or "")
    except ValueError:
        return False
    if isinstance(found, IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped.is_loopback
    return found.is_loopback
