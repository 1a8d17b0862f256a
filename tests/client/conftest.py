"""Fixtures for tests of commands: a relay for each file, and an environment without this machine's settings of the
tunnel and of proxies."""

import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.client.rig import Rig
from tests.client.sockets_rig import RelayThread, relay_thread
from tunnel_client import Runtime

_OURS = (
    "TUNNEL_RELAY",
    "TUNNEL_TOKEN",
    "TUNNEL_CARRIER",
    "TUNNEL_ENCRYPTION",
    "TUNNEL_PEER_KEY",
    "TUNNEL_INSECURE_HTTP",
    "XDG_RUNTIME_DIR",
)
_PROXIES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.fixture(autouse=True)
def no_such_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that end in .invalid (RFC 6761) do not resolve, and no name server is asked."""
    resolve = socket.getaddrinfo

    def getaddrinfo(host: Any, *arguments: Any, **options: Any) -> Any:
        if str(host).endswith(".invalid"):
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        return resolve(host, *arguments, **options)

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    """A relay in a thread."""
    with relay_thread() as found:
        yield found


@pytest.fixture(scope="module")
def runtime(relay: RelayThread) -> Iterator[Runtime]:
    """Access to that relay."""
    made = Runtime(relay.settings, linger=2.0)
    yield made
    made.close()


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    """A relay with its inline exit."""
    with Rig() as found:
        yield found


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A configuration and a cache directory for this test alone; the environment names no relay, key or proxy."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in (*_OURS, *_PROXIES, *map(str.upper, _PROXIES)):
        monkeypatch.delenv(name, raising=False)
    yield tmp_path
    structlog.reset_defaults()


@pytest.fixture
def known(rig: Rig, home: Path, monkeypatch: pytest.MonkeyPatch) -> Rig:
    """The relay, named by the environment variables."""
    for name, value in rig.environment().items():
        monkeypatch.setenv(name, value)
    return rig
