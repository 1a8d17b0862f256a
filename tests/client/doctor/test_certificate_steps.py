"""The doctor's conclusions about certificates, and about https:// through a proxy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.client.doctor.hops import opening_proxy
from tests.client.doctor.prober import FakeProber, finding, prober
from tests.client.doctor.rig import doctor, quick, tls_relay
from tests.client.rig import TOKEN, Rig
from tests.support.certificates import TLS, server_tls
from tests.support.loops import run
from tests.support.proxies import UpstreamProxy
from tunnel.carriers.dialing.dialing import Dialing
from tunnel_client.doctor.certificate_steps import examine_certificate
from tunnel_client.doctor.findings import Report, Verdict

__all__ = ["doctor", "quick"]


@pytest.mark.parametrize(
    ("issuer", "devices", "verdict", "intercepted"),
    [
        ("R11, Let's Encrypt", [], Verdict.OK, False),
        ("DigiCert Global G2 TLS RSA SHA256 2020 CA1, DigiCert Inc", ["Squid 5.7"], Verdict.OK, False),
        ("Zscaler Intermediate Root CA", [], Verdict.NOTE, True),
        ("Example Corp Web CA", ["Squid 5.7"], Verdict.NOTE, True),
        ("Example Corp Web CA", [], Verdict.NOTE, None),
    ],
)
def test_issuers_are_public_private_or_devices(
    monkeypatch: pytest.MonkeyPatch, issuer: str, devices: list[str], verdict: Verdict, intercepted: bool | None
) -> None:
    async def issuer_of(dialing: Dialing) -> str:
        return issuer

    monkeypatch.setattr("tunnel_client.doctor.certificate_steps.issuer_of", issuer_of)
    report = Report("")
    run(examine_certificate(report, prober(FakeProber(url="https://relay.invalid")), [], devices, None))
    found = finding(report, "TLS")
    assert (found.verdict, found.data["intercepted"]) == (verdict, intercepted)
    assert issuer in found.text


def test_a_proxy_that_decrypts_tls_with_a_trusted_authority_is_noted(home: Path, rig: Rig, doctor: Any) -> None:
    proxy = opening_proxy(rig, server_tls(), "1.1 proxy.test (squid/5.7)")
    code, found, _ = doctor("https://127.0.0.1:9", "--proxy", proxy, "--ca", str(TLS / "ca.pem"))
    assert code == 0
    assert found["TLS"][0] == "note"
    assert "TLS is decrypted on the path by Squid 5.7" in found["TLS"][1]
    assert "can read the token" in found["TLS"][1]
    assert found["hops"][2]["products"] == ["Squid 5.7"]


class _To443(UpstreamProxy):
    """A proxy that connects to a relay when it is asked for port 443, and to the named port otherwise."""

    def __init__(self, port: int) -> None:
        super().__init__()
        self._relay = port

    async def dial(self, host: str, port: int) -> Any:
        return await super().dial(host, self._relay if port == 443 else port)


def test_https_through_the_proxy_is_recommended_and_tried_without_the_token(home: Path, doctor: Any) -> None:
    with Rig(tls_relay()) as rig:
        proxy: _To443 = rig.enter(_To443(rig.running.addresses[0].port))
        url = f"http://127.0.0.1:{proxy.port}"
        code, found, report = doctor("http://127.0.0.1:9", "--proxy", url, "--ca", str(TLS / "ca.pem"))
    assert code == 3
    assert found["https"][2] == {"url": "https://127.0.0.1", "works": True}
    assert report["next"] == f"tunnel doctor --relay https://127.0.0.1 --proxy {url} --ca {TLS / 'ca.pem'}"
    assert TOKEN.encode() not in proxy.heads[-1]
