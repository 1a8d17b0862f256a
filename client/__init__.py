"""The socket shim and the command `tunnel`: what runs behind the firewall. Start with `create_connection`, or `patch`.

Names are imported when they are used: gevent may replace sockets before that.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from client.options import RelaySettings
    from client.patching import patch
    from client.runtime import Runtime, configure
    from client.sockets import TunnelSocket, create_connection

__all__ = ["RelaySettings", "Runtime", "TunnelSocket", "configure", "create_connection", "patch"]

_HOMES = {
    "options": "RelaySettings",
    "patching": "patch",
    "runtime": "Runtime configure",
    "sockets": "TunnelSocket create_connection",
}
_HOME = {name: f"client.{home}" for home, names in _HOMES.items() for name in names.split()}


def __getattr__(name: str) -> object:
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module 'client' has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
