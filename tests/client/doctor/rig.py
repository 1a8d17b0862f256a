"""The doctor as the tests run it: on a relay of their own, with short patience."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtests.faultproxy import FaultProxy, FaultProxyOptions
from tests.client.rig import TOKEN, Rig
from tests.servlet.rig import settings
from tests.support.certificates import TLS
from tunnel_client.cli.main import main
from tunnel_servlet.config import ListenAddress, RelayConfig, TlsFiles

__all__ = ["Found", "doctor", "hurry", "hurting", "quick", "tls_relay"]

Found = dict[str, tuple[str, str, dict[str, Any]]]


def hurry(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the doctor have short patience, and make short pauses."""
    monkeypatch.setattr("tunnel_client.doctor.carrier_steps.REST_S", 0.05)
    monkeypatch.setattr("tunnel_client.doctor.connection_steps._REST_S", 0.05)
    monkeypatch.setattr("tunnel_client.doctor.path_steps.LOAD_S", 0.1)
    monkeypatch.setattr("tunnel_client.doctor.path_steps.WITHHELD_S", 0.3)
    monkeypatch.setattr("tunnel_client.doctor.connection_steps.HELD_S", 0.2)
    monkeypatch.setattr("tunnel_client.doctor.relay_steps.WAIT_S", 0.0)
    monkeypatch.setattr("tunnel_client.doctor.hop_steps.PAGE_S", 0.5)
    for name in (
        "CONTROL_S",
        "WAIT_S",
        "WAIT_S_MAX",
        "GIVE_UP_S",
        "CONNECTIONS_S",
        "REQUESTS_S",
        "PAUSE_S",
        "BAN_PAUSE_S",
        "REST_S",
    ):
        monkeypatch.setattr(f"tunnel_client.doctor.trials.{name}", 0.05)


@pytest.fixture(autouse=True)
def quick(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hurry(monkeypatch)
    monkeypatch.setenv("TUNNEL_TOKEN", TOKEN)


@pytest.fixture
def doctor(capsys: pytest.CaptureFixture[str]) -> Any:
    def run(url: str, *arguments: str) -> tuple[int, Found, dict[str, Any]]:
        code = main(["doctor", "--json", "--watch", "0.3", "--relay", url, *arguments])
        lines = capsys.readouterr().out.splitlines()  # the relay's thread may have logged something
        report = json.loads(next(line for line in lines if line.startswith('{"version"')))
        assert report["exit_code"] == code
        found = {f["step"]: (f["verdict"], f"{f['text']}: {f['advice']}", f["data"]) for f in report["findings"]}
        return code, found, report

    return run


def hurting(rig: Rig, **options: Any) -> str:
    upstream = ("127.0.0.1", rig.running.addresses[0].port)
    proxy: FaultProxy = rig.enter(FaultProxy(FaultProxyOptions(upstream=upstream, **options)))
    return proxy.url


def tls_relay(server: str = "server.pem") -> RelayConfig:
    listen = ListenAddress("127.0.0.1", 0, True)
    return settings(listen=(listen,), tls=TlsFiles(str(TLS / server), str(TLS / server)))
