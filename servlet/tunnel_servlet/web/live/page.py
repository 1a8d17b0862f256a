"""The files of the live page. They hold nothing about the relay, so everybody on this machine may load them.

The page may load only these files and ask only this listener, run no other script, and be shown in no frame.
"""

from functools import cache
from importlib.resources import files

from aiohttp import web

from tunnel_servlet.access.proxies import UNIX
from tunnel_servlet.web.operator_access import source_of

__all__ = ["add_page"]

_POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
_HEADERS = {
    "Cache-Control": "no-cache",
    "Content-Security-Policy": _POLICY,
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_FILES = {
    "/live": ("live.html", "text/html"),
    "/live/live.css": ("live.css", "text/css"),
    "/live/icon.svg": ("icon.svg", "image/svg+xml"),
    "/live/live.js": ("live.js", "text/javascript"),
    "/live/lines.js": ("lines.js", "text/javascript"),
    "/live/tables.js": ("tables.js", "text/javascript"),
}


def add_page(app: web.Application) -> None:
    """Add the page to the application of the admin listener."""

    async def show(request: web.Request) -> web.Response:
        name, kind = _FILES[request.path]
        body = _content(name)
        if kind == "text/html" and source_of(request) == UNIX:
            body = body.replace(b"<html ", b'<html data-secret="unix" ', 1)  # by this way, any secret is right
        return web.Response(body=body, content_type=kind, charset="utf-8", headers=_HEADERS)

    for path in _FILES:
        app.router.add_get(path, show)


@cache
def _content(name: str) -> bytes:
    return (files(__package__) / "assets" / name).read_bytes()
