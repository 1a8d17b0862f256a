"""The kinds of faults between client and server, here called weather."""

from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from loadtests.bench.peers.contenders import LOOPBACK, Front
from loadtests.bench.programs import wait_listening
from loadtests.harness.nginx import Nginx
from loadtests.harness.processes import Process, python_command

__all__ = ["WEATHERS", "Weather", "losses"]

CUT_AGE_S = 0.5


class Weather(msgspec.Struct, frozen=True):
    """A kind of fault. `front` starts an intermediary in front of the server.

    If `kills`, the server is killed in the middle of the upload, and started again at once.
    """

    name: str
    what: str
    front: Front
    kills: bool = False


@contextmanager
def _nothing(port: int) -> Iterator[int]:
    yield port


@contextmanager
def _nginx(port: int) -> Iterator[int]:
    with Nginx(f"http://{LOOPBACK}:{port}") as nginx:
        wait_listening(nginx.process, nginx.port)
        yield nginx.port


@contextmanager
def losses(port: int, share: float = 0.05) -> Iterator[int]:
    """Lead to this port through a proxy that loses this share of requests, and the same share of answers."""
    options = ("--seed", "1", "--drop-request", str(share), "--drop-response", str(share))
    there = ("--listen", f"{LOOPBACK}:0", "--upstream", f"http://{LOOPBACK}:{port}")
    proxy = Process(python_command("loadtests.faultproxy", *there, *options), ready=lambda line: "http://" in line)
    with proxy:
        url = proxy.ready_line.split(f"http://{LOOPBACK}:")[1]
        yield int(url.split()[0].strip("/,;"))


@contextmanager
def _cuts(port: int) -> Iterator[int]:
    arguments = ("--upstream", str(port), "--age", str(CUT_AGE_S))
    command = python_command("loadtests.bench.peers.cutter", *arguments)
    with Process(command, ready=lambda line: line.startswith("ready ")) as cutter:
        yield int(cutter.ready_line.split()[1])


WEATHERS: tuple[Weather, ...] = (
    Weather("direct", "nothing in between", _nothing),
    Weather("nginx", "nginx with its defaults: it buffers whole bodies and removes Upgrade", _nginx),
    Weather("cuts", f"every TCP connection is reset {CUT_AGE_S} s after it was opened", _cuts),
    Weather("losses", "one request in twenty never arrives, one response in twenty is lost", losses),
    Weather("kill -9", "the server is killed in the middle of the upload, and started again", _nothing, kills=True),
)
