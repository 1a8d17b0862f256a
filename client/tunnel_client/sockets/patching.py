"""`patch`: a context in which the sockets of this process connect to certain hosts through a tunnel."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from concurrent.futures import Future
from types import TracebackType

from tunnel.ground.unused import WarnsIfUnused
from tunnel_client.borrowed import pair
from tunnel_client.borrowed.engine import Engine, Route
from tunnel_client.borrowed.hosts import Hosts, Placeholders, is_literal
from tunnel_client.borrowed.import_hook import Late
from tunnel_client.sockets.connector import errno_of
from tunnel_client.sockets.loop_thread import is_inside, refuse_eventlet
from tunnel_client.sockets.runtime import Runtime, connecting, default_runtime

__all__ = ["patch"]

_engine = Engine(Placeholders(), is_literal, is_inside, pair, errno_of, Late())


class Backend:
    """Connects sockets through a runtime, and keeps it alive: an active patch may hold the only reference to it."""

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime

    def connect(self, sock: socket.socket, host: str, port: int, timeout: float | None) -> None:
        connecting(self._runtime).connect(sock, host, port, timeout)

    def connect_soon(self, sock: socket.socket, host: str, port: int) -> Future[None]:
        return connecting(self._runtime).connect_soon(sock, host, port)


class patch(WarnsIfUnused):
    """`with tunnel_client.patch(hosts=["*.internal", "10.0.0.0/8"]): ...`

    In all threads of this process, TCP sockets that connect to a matching host do so through the tunnel, and the name
    of the host is resolved on the far side. "*" stands for every host but this machine. Connections that were opened
    under the patch outlive it.
    """

    _advice = "it takes effect only within `with tunnel_client.patch([...]):`"

    def __init__(self, hosts: Iterable[str], *, runtime: Runtime | None = None) -> None:
        self._hosts = Hosts(hosts)
        self._runtime = runtime
        self._route: Route | None = None
        self._expect_use()

    def __enter__(self) -> patch:
        if self._route is not None:
            raise RuntimeError("this patch is active: create another one")
        self._mark_used()
        refuse_eventlet()
        self._route = Route(self._hosts, Backend(self._runtime or default_runtime()))
        _engine.add(self._route)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._route is not None:
            _engine.remove(self._route)
            self._route = None
