"""The part of tunnel that runs behind the firewall: the socket shim and the command `tunnel`.

Start with `create_connection` or `patch`. Names are imported on first use, so that gevent can replace the sockets of
the standard library before that.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tunnel_client.settings import RelaySettings
    from tunnel_client.sockets.patching import patch
    from tunnel_client.sockets.runtime import Runtime, configure
    from tunnel_client.sockets.tunnel_socket import TunnelSocket, create_connection

__all__ = ["RelaySettings", "Runtime", "TunnelSocket", "configure", "create_connection", "patch"]

_HOMES = {
    "settings": "RelaySettings",
    "sockets.patching": "patch",
    "sockets.runtime": "Runtime configure",
    "sockets.tunnel_socket": "TunnelSocket create_connection",
}
_HOME = {name: f"tunnel_client.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'tunnel_client' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
