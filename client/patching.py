"""`patch`: for a while, sockets of this process that connect to certain hosts do it through a tunnel."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType

from client import sockets_pair
from client.patch_engine import Engine, Route
from client.patch_hosts import Hosts, Placeholders, is_literal
from client.patch_late import Late
from client.runtime import Runtime, default_runtime
from client.runtime_home import errno_of
from client.runtime_loop import is_inside

__all__ = ["patch"]

_engine = Engine(Placeholders(), is_literal, is_inside, sockets_pair, errno_of, Late())


class patch:
    """`with client.patch(hosts=["*.internal", "10.0.0.0/8"]): ...`

    In all threads of this process, sockets that connect to a matching host do it through the tunnel, and its name is
    resolved on the far side. "*" stands for every host but this machine. Connections made meanwhile outlive the patch.
    """

    def __init__(self, hosts: Iterable[str], *, runtime: Runtime | None = None) -> None:
        self._hosts = Hosts(hosts)
        self._runtime = runtime
        self._route: Route | None = None

    def __enter__(self) -> patch:
        if self._route is not None:
            raise RuntimeError("this patch is active: make another one")
        self._route = Route(self._hosts, self._runtime or default_runtime())
        _engine.add(self._route)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._route is not None:
            _engine.remove(self._route)
            self._route = None
