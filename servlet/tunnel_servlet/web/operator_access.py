"""Which requests the admin listener answers: other users of this machine can connect to it, and so can web pages in
their browsers. What changes something or tells about users needs the admin secret, or comes by a Unix socket
that only the relay's user can open."""

from collections.abc import Awaitable, Callable

from aiohttp import web

from tunnel.metrics.local_requests import is_loopback, why_a_page
from tunnel_servlet.access.proxies import UNIX
from tunnel_servlet.web.http.handler import RelayHandler
from tunnel_servlet.web.relay import Relay

__all__ = [
    "ADMIN_HEADER",
    "NO_STORE",
    "is_of_operator",
    "order_of_operator",
    "require_operator",
    "source_of",
    "without_pages",
]

ADMIN_HEADER = "Tunnel-Admin"  # its value is the admin secret; by a Unix socket, any
NO_STORE = {"Cache-Control": "no-store"}
_TERM = "send SIGTERM to the relay to drain it"
_COMMANDS = "run `tunnel-relay drain`, `state`, `ps` or `kick`, with -c FILE, as the user who may read the tokens file"


def source_of(request: web.Request) -> str:
    """Return the address from which a request to this listener comes, or that it comes by a Unix socket."""
    protocol = request.protocol
    return UNIX if isinstance(protocol, RelayHandler) and protocol.client == UNIX else request.remote or ""


def _is_here(source: str) -> bool:
    """Whether only this machine sends requests from there."""
    return source == UNIX or is_loopback(source)


@web.middleware
async def without_pages(
    request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
) -> web.StreamResponse:
    """Refuse the requests of web pages, except those of the page that this listener serves."""
    headers = request.headers
    origins, hosts = headers.getall("Origin", []), headers.getall("Host", [])
    source = source_of(request)
    is_own = _is_here(source) and origins == [f"http://{host}" for host in hosts]
    site = headers.get("Sec-Fetch-Site", "none")  # a browser says so, and a page cannot change it
    is_elsewhere = site not in ("none", "same-origin") and headers.get("Sec-Fetch-Mode") != "navigate"
    why = why_a_page(
        "127.0.0.1" if source == UNIX else source, hosts, has_origin=(bool(origins) and not is_own) or is_elsewhere
    )
    if why:
        raise _refusal(why)
    return await handler(request)


def is_of_operator(relay: Relay, request: web.Request) -> bool:
    """Whether the request comes from the operator, by the secret that is right at present, or by a Unix socket."""
    return source_of(request) == UNIX or relay.is_operator(request.headers.get(ADMIN_HEADER, ""))


def require_operator(relay: Relay, request: web.Request, *, is_for_all: bool = False) -> None:
    """Raise HTTPForbidden, which says why and what to do, unless the request comes from the operator.

    `is_for_all`: everybody on this machine may make it.
    """
    source = source_of(request)
    if source != UNIX and not is_loopback(source):
        raise _refusal("all but probes and metrics must be asked for on this machine, by way of loopback")
    if is_for_all or is_of_operator(relay, request):
        return
    if relay.admin_secret:
        raise _refusal(
            f"the header {ADMIN_HEADER} must hold the secret in the relay's tokens file: {_COMMANDS}, or {_TERM}"
        )
    if relay.config.is_open:
        raise _refusal(
            "an open relay without an admin secret in a tokens file tells nothing of its connections, and neither "
            f"ends them nor drains on request: start it with a configuration that `tunnel-relay init` wrote, or {_TERM}"
        )
    raise _refusal(
        "the relay's tokens file has no admin secret yet: the next `tunnel-relay user add` or `rotate` writes one; "
        f"or {_TERM}"
    )


def order_of_operator(relay: Relay, request: web.Request, act: str) -> None:
    """Do as `require_operator` for an order, and note in the audit that it came, or why it was refused.

    An order needs the header in any case. No web page can send it, by whatever way it reaches a Unix socket.
    """
    try:
        require_operator(relay, request)
        if ADMIN_HEADER not in request.headers:
            raise _refusal(f"an order must have the header {ADMIN_HEADER}; by a Unix socket, it may be empty")
    except web.HTTPForbidden as refusal:
        relay.audit.note_no_operator(act, source_of(request), (refusal.text or "").strip())
        raise


def _refusal(why: str) -> web.HTTPForbidden:
    return web.HTTPForbidden(text=f"{why}\n", headers=NO_STORE)
