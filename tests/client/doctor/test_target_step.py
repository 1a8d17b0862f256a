"""What the doctor says about the encryption of a target: whether it has a key, and whether that is verified."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.client.rig import Rig
from tests.encryption.rig import another_key, key, key_file
from tests.servlet.rig import TOKENS
from tunnel import StreamReader, StreamWriter, attach
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.target_step import examine_target
from tunnel_client.login_file import known_peers_path
from tunnel_client.places import Address
from tunnel_client.settings import find_settings

SERVICE = Address("reports", None)


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    with Rig() as found:
        yield found


@pytest.fixture(autouse=True)
def token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", TOKENS["ann"])


async def close(reader: StreamReader, writer: StreamWriter) -> None:
    writer.close()


def examine(rig: Rig, key: str | None, encryption: str = "auto") -> tuple[Report, SimpleNamespace]:
    """Offer the service with this key; return the report, and the finding about encryption."""
    service = rig.enter(attach(rig.url, token=TOKENS["ann"], proxy=None, key=key, carrier="link"))
    rig.call(service.start_server(close, SERVICE.host))
    report = Report(rig.url)
    try:
        settings = find_settings(relay=rig.url, proxy=None, encryption=encryption)
        asyncio.run(examine_target(report, settings, SERVICE))
    finally:
        rig.call(service.close())
    found = report.findings[-1]
    assert found.step == "encryption"
    return report, SimpleNamespace(verdict=found.verdict, text=f"{found.text}: {found.advice}", data=found.data)


def trust(rig: Rig, fingerprint: str) -> None:
    path = known_peers_path()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{rig.url} service:{SERVICE.host} {fingerprint}\n")
    path.chmod(0o600)


def test_a_service_without_a_key_is_in_clear(rig: Rig) -> None:
    report, found = examine(rig, None)
    assert report.exit_code == 0
    assert found.verdict is Verdict.OK
    assert "the service reports has no key: the relay" in found.text
    assert found.data == {"peer": "service:reports", "key": ""}


def test_encryption_that_is_off_is_named_as_the_cause(rig: Rig) -> None:
    _, found = examine(rig, key_file(), "off")
    assert "--encryption is off" in found.text


def test_a_new_key_is_shown_and_not_remembered(rig: Rig) -> None:
    report, found = examine(rig, key_file())
    assert report.exit_code == 0
    assert found.verdict is Verdict.NOTE
    assert f"tunnel peers trust service:reports {key().fingerprint}" in found.text
    assert not known_peers_path().exists()


def test_a_known_key_is_verified(rig: Rig) -> None:
    trust(rig, key().fingerprint)
    _, found = examine(rig, key_file())
    assert (found.verdict, found.data["verified"]) == (Verdict.OK, True)


def test_another_key_is_a_problem_with_code_4(rig: Rig) -> None:
    trust(rig, key().fingerprint)
    report, found = examine(rig, str(another_key().path))
    assert (report.exit_code, found.verdict) == (4, Verdict.PROBLEM)
    assert key().fingerprint in found.text
    assert another_key().fingerprint in found.text


def test_a_damaged_file_of_known_peers_is_a_problem(rig: Rig) -> None:
    trust(rig, "nonsense")
    report, found = examine(rig, key_file())
    assert (report.exit_code, found.verdict) == (4, Verdict.PROBLEM)
    assert "line 1 is malformed" in found.text
