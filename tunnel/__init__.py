"""TCP-like sockets over plain HTTP requests. Start with `attach`.

A name is imported when it is first used. `import tunnel` is therefore cheap and works without the carriers' libraries.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunnel.attaching import attach, memory_attach
    from tunnel.attachment import Attachment
    from tunnel.errors import (
        DeniedError,
        IntegrityError,
        LocalProtocolError,
        LostError,
        LostReason,
        NotAuthenticatedError,
        PeerClosedError,
        PeerKeyError,
        ProxyPasswordError,
        RefusedError,
        RejectReason,
        ResetError,
        TunnelError,
        UnreachableError,
    )
    from tunnel.status import AttachmentStats, ConnectionListener, ErrorListener, StatisticsCollector, WaitListener
    from tunnel.streams.listener import ExitRequest, Server
    from tunnel.streams.rate_limit import RateLimit
    from tunnel.streams.streams import StreamReader, StreamWriter
    from tunnel.streams.transport import Transport
    from tunnel.tracing import TraceWriter, open_trace
    from tunnel.wire import PublicPlace

__version__ = "0.1.0"  # the build reads the version from this line

__all__ = [
    "Attachment",
    "AttachmentStats",
    "ConnectionListener",
    "DeniedError",
    "ErrorListener",
    "ExitRequest",
    "IntegrityError",
    "LocalProtocolError",
    "LostError",
    "LostReason",
    "NotAuthenticatedError",
    "PeerClosedError",
    "PeerKeyError",
    "ProxyPasswordError",
    "PublicPlace",
    "RateLimit",
    "RefusedError",
    "RejectReason",
    "ResetError",
    "Server",
    "StatisticsCollector",
    "StreamReader",
    "StreamWriter",
    "TraceWriter",
    "Transport",
    "TunnelError",
    "UnreachableError",
    "WaitListener",
    "__version__",
    "attach",
    "memory_attach",
    "open_trace",
]

_HOMES = {
    "attachment": "Attachment",
    "attaching": "attach memory_attach",
    "errors": "DeniedError IntegrityError LocalProtocolError LostError LostReason NotAuthenticatedError "
    "PeerClosedError PeerKeyError ProxyPasswordError RefusedError RejectReason ResetError TunnelError "
    "UnreachableError",
    "streams.listener": "ExitRequest Server",
    "streams.rate_limit": "RateLimit",
    "status": "AttachmentStats ConnectionListener ErrorListener StatisticsCollector WaitListener",
    "streams.streams": "StreamReader StreamWriter",
    "tracing": "TraceWriter open_trace",
    "streams.transport": "Transport",
    "wire": "PublicPlace",
}
_HOME = {name: f"tunnel.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tunnel' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
