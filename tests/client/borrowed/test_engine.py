"""The engine that replaces functions of `socket`, without a tunnel: which sockets it leads through a tunnel, and two
threads that begin or end patches at once."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from tunnel_client.borrowed import pair
from tunnel_client.borrowed.engine import Engine, Route
from tunnel_client.borrowed.hosts import Hosts, Placeholders, is_literal
from tunnel_client.sockets.connector import errno_of


class Late:
    """Stands for the import hook, and patches no module. `slow` names the call that lasts until `goes_on` is set."""

    def __init__(self, slow: str = "") -> None:
        self.slow = slow
        self.watched: list[str] = []
        self.is_slow, self.goes_on = threading.Event(), threading.Event()

    def watch(self, name: str, call: Callable[[Any], None]) -> None:
        self.watched.append(name)
        self._last("watch")

    def stop(self) -> None:
        self._last("stop")

    def _last(self, name: str) -> None:
        if name == self.slow:
            self.is_slow.set()
            assert self.goes_on.wait(10)


def engine(late: Late, is_inside: Callable[[], bool] = lambda: False) -> Engine:
    return Engine(Placeholders(), is_literal, is_inside, pair, errno_of, late)


def route() -> Route:
    return Route(Hosts(["*.invalid"]), None)


@contextmanager
def active(engine: Engine, *routes: Route) -> Iterator[None]:
    for route in routes:
        engine.add(route)
    try:
        yield
    finally:
        for route in routes:
            engine.remove(route)


def test_sockets_of_the_tunnel_itself_are_not_led_through_the_tunnel() -> None:
    """The carrier would otherwise wait for itself when a pattern matches the relay."""
    inside = [False]
    with active(engine(Late(), lambda: inside[0]), route()):
        assert socket.getaddrinfo("relay.invalid", 80)[0][4][0] == socket.gethostbyname("relay.invalid")
        inside[0] = True
        with pytest.raises(socket.gaierror):
            socket.getaddrinfo("relay.invalid", 80)


def test_two_patches_that_begin_at_once_replace_the_functions_once() -> None:
    late = Late("watch")
    shared, routes = engine(late), [route(), route()]
    threads = [threading.Thread(target=shared.add, args=(each,)) for each in routes]
    threads[0].start()
    assert late.is_slow.wait(10)
    threads[1].start()
    threads[1].join(0.2)  # it has to wait for the first
    late.goes_on.set()
    for thread in threads:
        thread.join(10)
    assert len(late.watched) == len(set(late.watched))
    for each in routes:
        shared.remove(each)
    assert "connect" not in vars(socket.socket)


def test_a_patch_that_begins_while_another_ends_is_in_force() -> None:
    late = Late("stop")
    shared, first, second = engine(late), route(), route()
    shared.add(first)
    ending = threading.Thread(target=shared.remove, args=(first,))
    ending.start()
    assert late.is_slow.wait(10)
    beginning = threading.Thread(target=shared.add, args=(second,))
    beginning.start()
    beginning.join(0.2)  # it has to wait for the end of the other
    late.goes_on.set()
    for thread in (ending, beginning):
        thread.join(10)
    try:
        assert "connect" in vars(socket.socket)
    finally:
        shared.remove(second)
    assert "connect" not in vars(socket.socket)
