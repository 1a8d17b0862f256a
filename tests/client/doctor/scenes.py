"""The network paths that docs/DOCTOR.md shows, and the doctor's output for them."""

from __future__ import annotations

import contextlib
import io
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from loadtests.faultproxy import FaultProxy, FaultProxyOptions, Html
from loadtests.harness.ports import hold_port
from tests.client.rig import Rig, greet
from tests.real.servers import start_nginx, start_squid
from tunnel_client.cli.main import main

__all__ = ["SCENES", "Scene", "documented", "normalised", "said"]

DOCUMENT = Path(__file__).parents[3] / "docs" / "DOCTOR.md"
_NUMBER = re.compile(r"\d+(\.\d+)?")
_BLOCK = re.compile(
    r"^## (?P<title>.+?)\n.*?```\n\$ [^\n]*\n(?P<output>.*?)```\n.*?`(?P<code>\d+)`", re.MULTILINE | re.DOTALL
)

Scene = Callable[[Rig, Path], "contextlib.AbstractContextManager[list[str]]"]


@contextmanager
def clean(rig: Rig, directory: Path) -> Iterator[list[str]]:
    """A path without proxies."""
    yield ["--relay", rig.url, f"127.0.0.1:{rig.serve(greet)}"]


@contextmanager
def behind_nginx(rig: Rig, directory: Path) -> Iterator[list[str]]:
    """nginx with its default configuration."""
    with start_nginx(directory, "nginx-defaults.conf", relay=rig.running.addresses[0].port) as nginx:
        yield ["--relay", nginx.url, f"127.0.0.1:{rig.serve(greet)}"]


@contextmanager
def behind_squid(rig: Rig, directory: Path) -> Iterator[list[str]]:
    """squid, which demands a password."""
    with start_squid("squid-basic.conf", {"passwords": "ann:x\n"}) as squid:
        yield ["--relay", rig.url, "--proxy", squid.url]


@contextmanager
def behind_a_login_page(rig: Rig, directory: Path) -> Iterator[list[str]]:
    """A device that answers every request with HTML."""
    upstream = ("127.0.0.1", rig.running.addresses[0].port)
    proxy = rig.enter(FaultProxy(FaultProxyOptions(upstream=upstream, html=Html(1.0))))
    yield ["--relay", proxy.url]


@contextmanager
def nobody(rig: Rig, directory: Path) -> Iterator[list[str]]:
    """An address at which no relay listens."""
    with hold_port() as port:
        yield ["--relay", f"http://127.0.0.1:{port}"]


SCENES: dict[str, tuple[Scene, str]] = {  # with the program that the scene needs
    "A clean path": (clean, ""),
    "nginx that collects requests": (behind_nginx, "nginx"),
    "squid that asks for a password": (behind_squid, "squid"),
    "A login page": (behind_a_login_page, ""),
    "No relay": (nobody, ""),
}


def said(scene: Scene, rig: Rig, directory: Path, watch: str = "0.2") -> tuple[int, str]:
    """Run the doctor on a scene; return its exit code and output."""
    out = io.StringIO()
    with scene(rig, directory) as arguments, contextlib.redirect_stdout(out):
        code = main(["doctor", *arguments, "--watch", watch])
    return code, out.getvalue()


def documented() -> dict[str, tuple[int, str]]:
    """The exit codes and outputs in docs/DOCTOR.md, by heading."""
    found = _BLOCK.finditer(DOCUMENT.read_text())
    return {match["title"]: (int(match["code"]), match["output"]) for match in found}


def normalised(text: str) -> str:
    """Replace each number by #, and line breaks by spaces: both differ from run to run."""
    return " ".join(_NUMBER.sub("#", text).split())
