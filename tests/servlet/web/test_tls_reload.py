"""Certificates and authorities that are replaced while the relay runs: new connections use them, open ones go on."""

from __future__ import annotations

import asyncio
import hashlib
import os
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID
from structlog.testing import capture_logs

from tests.servlet.rig import KEYS, TOKENS, relay, until
from tests.servlet.web.public_ports_rig import echo
from tests.servlet.web.rig import SECRET, certificates, openssl  # noqa: F401  # `certificates` is a fixture
from tests.support.loops import in_loop
from tunnel import Attachment, attach
from tunnel_servlet.command.files import load_config, reload_config, watched_files, write_users
from tunnel_servlet.command.main import main
from tunnel_servlet.config import TlsFiles
from tunnel_servlet.web.http.tls import out_of_date
from tunnel_servlet.web.running import RunningRelay

CONFIG = """\
listen = ["127.0.0.1:0"]
public_http = ["127.0.0.1:0"]
tokens = "keys.toml"
[tls]
certificate = "relay.pem"
key = "relay.key"
{ca}
[users.ann]
services = ["reports"]
listen = ["reports"]
public_hosts = ["ann.example"]
"""


@pytest.fixture
def folder(certificates: Path, tmp_path: Path) -> Path:  # noqa: F811
    for name in certificates.iterdir():
        shutil.copy(name, tmp_path)
    (tmp_path / "relay.toml").write_text(CONFIG.format(ca=""))
    write_users(tmp_path / "keys.toml", {"ann": KEYS["ann"]}, SECRET)
    return tmp_path


def renew(folder: Path, name: str = "relay", ca: str = "ca") -> None:
    """Replace a certificate and its key by new ones that the authority has signed."""
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    signed = ["-CA", f"{ca}.pem", "-CAkey", f"{ca}.key", "-addext", "subjectAltName=IP:127.0.0.1"]
    openssl(folder, *new, *signed, "-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")


@asynccontextmanager
async def running_in(folder: Path) -> AsyncIterator[RunningRelay]:
    file = str(folder / "relay.toml")
    config = load_config(file)
    async with relay(config, load=partial(reload_config, file), files=watched_files(file, config)) as running:
        yield running


def client(running: RunningRelay, folder: Path) -> Attachment:
    return attach(f"https://{running.addresses[0]}", token=TOKENS["ann"], ca=str(folder / "ca.pem"), proxy=None)


async def shown(port: int, folder: Path, name: str = "") -> str:
    """Return the digest of the certificate that the relay shows; raise OSError if it takes no connection."""
    context = ssl.create_default_context(cafile=str(folder / "ca.pem"))
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
    try:
        found = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.write(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        if not await reader.read(1):  # TLS 1.3: the client learns only now that its certificate is refused
            raise ConnectionResetError
        return hashlib.sha256(found).hexdigest()
    finally:
        writer.close()
        await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def on_disk(folder: Path) -> str:
    return hashlib.sha256(ssl.PEM_cert_to_DER_cert((folder / "relay.pem").read_text())).hexdigest()


@in_loop
async def test_a_renewed_certificate_is_shown_to_new_connections_and_open_ones_go_on(folder: Path) -> None:
    async with running_in(folder) as running, client(running, folder) as ann:
        server = await ann.start_server(echo, "reports")
        reader, writer = await ann.open_connection("reports")
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        links = running.relay.host.switch.stats().links
        ports = running.addresses[0].port, running.public_addresses[0].port
        before = on_disk(folder)
        assert [await shown(port, folder) for port in ports] == [before, before]
        renew(folder)
        with capture_logs() as logs:
            assert running.reload()
        assert [await shown(port, folder) for port in ports] == [on_disk(folder)] * 2 != [before] * 2
        assert [log["event"] for log in logs if log["event"] in ("certificates", "at_next_start")] == ["certificates"]
        writer.write(b"after")
        assert await reader.readexactly(5) == b"after"
        stats = running.relay.host.switch.stats()
        assert (stats.links, stats.counters.links_opened) == (links, links)
        writer.close()
        server.close()


@in_loop
async def test_the_relay_sees_by_itself_that_a_certificate_was_renewed(folder: Path) -> None:
    async with running_in(folder) as running:
        before = running.relay.reloads.applied
        renew(folder)
        await until(lambda: running.relay.reloads.applied > before)
        while await shown(running.addresses[0].port, folder) != on_disk(folder):
            await until(lambda: running.relay.reloads.applied > before + 1)


@pytest.mark.parametrize("broken", ["cut", "gone", "other key", "pipe"])
@in_loop
async def test_files_that_do_not_fit_change_nothing_until_they_do(folder: Path, broken: str) -> None:
    async with running_in(folder) as running:
        before, key = on_disk(folder), (folder / "relay.key").read_bytes()
        match broken:
            case "cut":
                (folder / "relay.key").write_bytes(key[:60])
            case "gone":
                (folder / "relay.pem").unlink()
            case "pipe":
                (folder / "relay.key").unlink()
                os.mkfifo(folder / "relay.key", 0o600)
            case _:
                shutil.copy(folder / "client.key", folder / "relay.key")
        assert not running.reload()
        assert "are not a certificate and its key" in running.relay.reloads.error
        assert await shown(running.addresses[0].port, folder) == before
        (folder / "relay.key").unlink()  # nobody reads the pipe
        renew(folder)
        assert running.reload()
        assert await shown(running.addresses[0].port, folder) == on_disk(folder)


@in_loop
async def test_rules_that_change_alone_make_no_new_context(folder: Path) -> None:
    async with running_in(folder) as running:
        (folder / "relay.toml").write_text(CONFIG.format(ca="") + 'connect = ["a:1"]\n')
        with capture_logs() as logs:
            assert running.reload()
        assert "certificates" not in [log["event"] for log in logs]


@in_loop
async def test_two_users_an_authority_that_is_replaced_counts_for_new_connections_only(folder: Path) -> None:
    openssl(
        folder,
        *["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"],
        *["-subj", "/CN=other", "-keyout", "other.key", "-out", "other.pem"],
    )
    shutil.copy(folder / "ca.pem", folder / "clients.pem")
    (folder / "relay.toml").write_text(CONFIG.format(ca='client_ca = "clients.pem"'))
    renew(folder, "client")
    async with running_in(folder) as running:
        port, public = running.addresses[0].port, running.public_addresses[0].port
        assert await shown(port, folder, "client") == on_disk(folder)
        shutil.copy(folder / "other.pem", folder / "clients.pem")
        assert running.reload()
        with pytest.raises(OSError, match=r".*"):
            await shown(port, folder, "client")
        renew(folder, "guest", "other")
        assert await shown(port, folder, "guest") == on_disk(folder)
        assert await shown(public, folder) == on_disk(folder)  # people without the tunnel need no certificate


@in_loop
async def test_other_files_that_the_configuration_names_are_used_and_watched(folder: Path) -> None:
    async with running_in(folder) as running:
        renew(folder, "second")
        text = CONFIG.format(ca="").replace("relay.pem", "second.pem").replace("relay.key", "second.key")
        (folder / "relay.toml").write_text(text)
        assert running.reload()
        shutil.copy(folder / "second.pem", folder / "relay.pem")
        assert await shown(running.addresses[0].port, folder) == on_disk(folder)
        renew(folder, "second")
        shutil.copy(folder / "second.pem", folder / "relay.pem")
        before = running.relay.reloads.applied
        await until(lambda: running.relay.reloads.applied > before)


def dated(folder: Path, first_day: int, last_day: int, *, is_signed: bool = False) -> None:
    """Replace the certificate by one that is valid from and until these days from now. It signs itself, or another
    authority has, which the relay does not know."""
    now = datetime.now(UTC)
    name, other = (x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text)]) for text in ("relay", "authority"))
    key, authority = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    issuer = other if is_signed else name
    builder = x509.CertificateBuilder(issuer, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now + timedelta(first_day)).not_valid_after(now + timedelta(last_day))
    made = builder.sign(authority if is_signed else key, hashes.SHA256())
    (folder / "relay.pem").write_bytes(made.public_bytes(Encoding.PEM))
    (folder / "relay.key").write_bytes(key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
    (folder / "relay.key").chmod(0o600)


OLD = "the certificate relay.pem has expired, so clients refuse it: renew it"
EARLY = "the certificate relay.pem is not valid yet, so clients refuse it: renew it"


@pytest.mark.parametrize("is_signed", [False, True])
@pytest.mark.parametrize(("first_day", "last_day", "said"), [(-9, -1, OLD), (1, 9, EARLY), (-1, 1, "")])
def test_a_certificate_that_clients_refuse_for_its_dates_is_named(
    first_day: int,
    last_day: int,
    said: str,
    is_signed: bool,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    dated(folder, first_day, last_day, is_signed=is_signed)
    assert out_of_date(TlsFiles("relay.pem", "relay.key")) == said
    assert main(["check"]) == 0
    assert capsys.readouterr().err == (f"note: {said}\n" if said else "")


@in_loop
async def test_a_certificate_that_has_expired_is_named_when_it_is_read_again(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)
    async with running_in(folder) as running:
        for days, said in (((-9, -1), [OLD]), ((-1, 9), [])):
            dated(folder, *days)
            with capture_logs() as logs:
                assert running.reload()
            assert [log["text"].replace(f"{folder}/", "") for log in logs if log["log_level"] == "warning"] == said
