"""Users who prove who they are by a certificate in TLS."""

from __future__ import annotations

import asyncio
import hashlib
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from tests.servlet.rig import KEYS, TOKENS, attach_body, relay, settings, until
from tests.servlet.web.rig import Echo, files, hang_up, openssl, still_echoes
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import Attachment, DeniedError, NotAuthenticatedError, attach
from tunnel.wire import Attached, decode_envelope
from tunnel_servlet.access.grants import EXIT_USER, Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.audit.event import AuditEvent, Kind
from tunnel_servlet.config import RelayConfig
from tunnel_servlet.web.running import RunningRelay

pytestmark = pytest.mark.real("openssl")

ANYWHERE = Grant(connect=(parse_rule("127.0.0.0/8:*"),))
SHOWN = {  # the certificates of the tests, and the names in them
    "ann": "DNS:ann.example",
    "bob": "URI:spiffe://example/bob",
    "gateway": "DNS:gateway.example",
    "both": "DNS:ann.example,URI:spiffe://example/bob",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with ca.pem, relay.pem and a file for each client; `stranger` is of another authority."""
    made = tmp_path_factory.mktemp("certificates")
    new = ["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2"]
    for authority in ("ca", "other"):
        openssl(made, *new, "-subj", f"/CN={authority}", "-keyout", f"{authority}.key", "-out", f"{authority}.pem")
    for name, alternative in {"relay": "IP:127.0.0.1", **SHOWN, "stranger": SHOWN["ann"]}.items():
        authority = "other" if name == "stranger" else "ca"
        signed = ["-CA", f"{authority}.pem", "-CAkey", f"{authority}.key", "-addext", f"subjectAltName={alternative}"]
        openssl(made, *new, *signed, "-subj", f"/CN=some {name}", "-keyout", f"{name}.key", "-out", f"{name}.pem")
        both = made / f"{name}.both"
        both.touch(0o600)
        both.write_text((made / f"{name}.key").read_text() + (made / f"{name}.pem").read_text())
    return made


def mapped(**names: str) -> GrantTable:
    """Return the grants of ann and bob, with the names in their certificates."""
    return GrantTable({user: with_names(names.get(user, "")) for user in ("ann", "bob")})


def with_names(*names: str) -> Grant:
    return Grant(connect=ANYWHERE.connect, certificates=tuple(filter(None, names)))


BOTH = {"ann": "DNS:ann.example", "bob": "URI:spiffe://example/bob"}


def configured(folder: Path, *, optional: bool = True, **changes: Any) -> RelayConfig:
    tls = files(folder, "ca.pem")
    tls = type(tls)(tls.certificate, tls.key, tls.client_ca, optional)
    return settings(tls=tls, **{"grants": mapped(**BOTH), "tokens": TokenTable({}), **changes})


def client(running: RunningRelay, folder: Path, name: str, token: str | None = None, **more: Any) -> Attachment:
    options: dict[str, Any] = {"proxy": None, "linger": 0.1, "ca": str(folder / "ca.pem"), "token": token, **more}
    if name:
        options["cert"] = str(folder / f"{name}.both")
    return attach(f"https://{running.addresses[0]}", **options)


async def ask(
    running: RunningRelay, folder: Path, name: str, token: str = "", seed: int = 1, /, **headers: str
) -> tuple[int, Any]:
    """Send an ATTACH with this certificate, and return the status and the message."""
    context = ssl.create_default_context(cafile=folder / "ca.pem")
    if name:
        context.load_cert_chain(folder / f"{name}.pem", folder / f"{name}.key")
    names = {"Content-Type": "application/octet-stream", **headers}
    if token:
        names["Authorization"] = f"Bearer {token}"
    async with (
        aiohttp.ClientSession() as session,
        session.post(
            f"https://{running.addresses[0]}/exchange", data=attach_body(seed), headers=names, ssl=context
        ) as response,
    ):
        return response.status, decode_envelope(await response.read())


@asynccontextmanager
async def served(config: RelayConfig) -> AsyncIterator[RunningRelay]:
    async with relay(replace(config, exit="inline")) as running:
        yield running


@pytest.mark.parametrize("carrier", ["poll", "stream", "link", "websocket"])
@in_loop
async def test_two_users_each_is_the_user_of_its_certificate_without_a_token(folder: Path, carrier: str) -> None:
    echo = Echo()
    async with (
        target(echo) as port,
        served(configured(folder)) as running,
        client(running, folder, "ann", carrier=carrier) as ann,
        client(running, folder, "bob", carrier=carrier) as bob,
    ):
        mine = await ann.open_connection("127.0.0.1", port)
        theirs = await bob.open_connection("127.0.0.1", port)
        await still_echoes(mine)
        await still_echoes(theirs)
        totals = {one.user: one.attachments for one in running.relay.host.switch.operator.users()}
        assert {user: totals[user] for user in ("ann", "bob")} == {"ann": 1, "bob": 1}
        await hang_up(mine, theirs)


@in_loop
async def test_two_users_what_a_certificate_opened_ends_when_the_rules_take_it_from_its_user(folder: Path) -> None:
    echo, config = Echo(), configured(folder)
    async with (
        target(echo) as port,
        served(config) as running,
        client(running, folder, "ann") as ann,
        client(running, folder, "bob") as bob,
    ):
        mine = await ann.open_connection("127.0.0.1", port)
        theirs = await bob.open_connection("127.0.0.1", port)
        await still_echoes(mine)
        await still_echoes(theirs)
        running.relay.reload(replace(running.config, grants=mapped(bob=BOTH["bob"])))
        with pytest.raises(NotAuthenticatedError, match=r"ask the operator|no user has a certificate"):
            await mine[0].read()
        await until(lambda: echo.open == 1)
        await still_echoes(theirs)
        await hang_up(mine, theirs)


@in_loop
async def test_what_a_certificate_opened_ends_when_it_expires_and_nothing_begins_with_it(folder: Path) -> None:
    async with served(configured(folder)) as running, client(running, folder, "ann") as ann:
        soon = running.relay.clock() + 3 * 86_400
        running.relay.clock = lambda: soon
        running.relay._look_for_expired()
        await until(lambda: ann.refusal is not None)
        assert "the certificate expired on " in str(ann.refusal)
        status, message = await ask(running, folder, "ann")
        assert status == 401
        assert message.text.startswith("the certificate expired on ")
        assert message.text.endswith(" UTC; ask the operator for a new one")


def present(running: RunningRelay) -> set[str]:
    """Return the users with an endpoint."""
    return {one.user for one in running.relay.host.switch.operator.users()} - {EXIT_USER}


@in_loop
async def test_two_users_an_expired_certificate_also_ends_the_endpoint_that_holds_no_request(folder: Path) -> None:
    config = configured(folder, tokens=TokenTable({"bob": KEYS["bob"]}))
    async with served(config) as running:
        assert (await ask(running, folder, "ann"))[0] == 200
        assert (await ask(running, folder, "bob", "", 2))[0] == 200
        assert (await ask(running, folder, "", TOKENS["bob"], 3))[0] == 200
        soon = running.relay.clock() + 3 * 86_400
        running.relay.clock = lambda: soon
        assert not running.relay.has_user("ann")
        running.relay._look_for_expired()
        await until(lambda: present(running) == {"bob"})  # whose token is valid


@in_loop
async def test_a_user_with_a_line_for_certificates_is_not_kept_by_it_when_the_token_is_revoked(folder: Path) -> None:
    async with served(configured(folder, tokens=TokenTable(KEYS))) as running:
        assert (await ask(running, folder, "", TOKENS["ann"]))[0] == 200
        assert (await ask(running, folder, "bob", "", 2))[0] == 200
        running.relay.reload(replace(running.config, tokens=TokenTable({})))
        await until(lambda: present(running) == {"bob"})


@in_loop
async def test_a_certificate_that_the_rules_take_away_keeps_its_user_no_longer_than_the_others(folder: Path) -> None:
    both = GrantTable({"ann": with_names(BOTH["ann"], "CN:some gateway")})
    async with served(configured(folder, grants=both)) as running:
        assert (await ask(running, folder, "ann"))[0] == 200
        assert (await ask(running, folder, "gateway", "", 2))[0] == 200
        running.relay.reload(replace(running.config, grants=GrantTable({"ann": with_names("CN:some gateway")})))
        await until(lambda: len(running.relay._certified._shown["ann"]) == 1)
        assert running.relay.has_user("ann")
        running.relay.reload(replace(running.config, grants=GrantTable({"ann": with_names("DNS:another.example")})))
        await until(lambda: present(running) == set())


@in_loop
async def test_a_relay_with_certificates_looks_for_expired_ones_although_no_token_expires(folder: Path) -> None:
    async with served(configured(folder)) as running:
        timer = running.relay._watch._timer
        assert timer is not None
        assert timer.when() - asyncio.get_running_loop().time() <= 30


@in_loop
async def test_two_users_a_token_and_the_certificate_of_another_user_do_not_go_together(folder: Path) -> None:
    notes: list[AuditEvent] = []
    async with served(configured(folder, tokens=TokenTable(KEYS))) as running:
        running.relay.audit.note = lambda event, payer=None: notes.append(event)  # type: ignore[method-assign]
        status, message = await ask(running, folder, "ann", TOKENS["bob"])
        assert (status, message.text) == (403, "the token is of bob, and the certificate of ann: use one of them")
        assert isinstance((await ask(running, folder, "ann", TOKENS["ann"]))[1], Attached)
        # A gateway that belongs to no user passes on the tokens of all.
        for user in ("ann", "bob"):
            status, _ = await ask(running, folder, "gateway", TOKENS[user])
            assert status in (200, 404)  # 404: the id of the test's ATTACH is ann's
        assert running.relay.failures.certificates == 1
    refused = [(one.reason, one.user, one.token, one.source) for one in notes if one.event is Kind.TOKEN_REFUSED]
    assert refused == [("certificate", "bob", KEYS["bob"][0].id, "127.0.0.1")]


@pytest.mark.parametrize(
    ("name", "token", "headers", "status", "text"),
    [
        (
            "gateway",
            "",
            {},
            401,
            "no user has a certificate with one of the names DNS:gateway.example, CN:some gateway",
        ),
        ("both", "", {}, 403, "of the certificate are of several users"),
        ("ann", "", {"Origin": "https://evil.example"}, 403, "a web page may not use the certificate of its browser"),
        ("ann", "tnl_00000000_" + "A" * 43, {}, 401, "no such token"),
        ("", "", {}, 401, "no token came"),
    ],
)
@in_loop
async def test_what_proves_no_user_is_refused_with_its_reason(
    folder: Path, name: str, token: str, headers: dict[str, str], status: int, text: str
) -> None:
    async with served(configured(folder)) as running:
        found, message = await ask(running, folder, name, token, **headers)
        assert (found, text in message.text) == (status, True)
        assert running.relay.host.switch.stats().attachments == 1  # the inline exit


@in_loop
async def test_a_certificate_of_another_authority_opens_no_connection(folder: Path) -> None:
    async with served(configured(folder)) as running:
        with pytest.raises((aiohttp.ClientError, OSError)):
            await ask(running, folder, "stranger")
        assert running.relay.host.switch.stats().attachments == 1  # the inline exit


@in_loop
async def test_without_client_optional_a_token_does_not_replace_a_certificate(
    folder: Path,
) -> None:
    async with served(configured(folder, optional=False, tokens=TokenTable(KEYS))) as running:
        with pytest.raises((aiohttp.ClientError, OSError)):
            await ask(running, folder, "", TOKENS["ann"])
        assert isinstance((await ask(running, folder, "ann"))[1], Attached)


@in_loop
async def test_a_fingerprint_names_one_certificate(folder: Path) -> None:
    digest = ssl.PEM_cert_to_DER_cert((folder / "gateway.pem").read_text())
    grants = mapped(ann=f"SHA256:{hashlib.sha256(digest).hexdigest()}")
    async with served(configured(folder, grants=grants)) as running:
        assert isinstance((await ask(running, folder, "gateway"))[1], Attached)
        assert (await ask(running, folder, "ann"))[0] == 401


@in_loop
async def test_without_names_in_the_rules_a_certificate_proves_nothing(folder: Path) -> None:
    async with served(configured(folder, grants=mapped(), tokens=TokenTable(KEYS))) as running:
        status, message = await ask(running, folder, "ann")
        assert (status, message.text.startswith("no token came")) == (401, True)
        assert isinstance((await ask(running, folder, "ann", TOKENS["bob"]))[1], Attached)


@in_loop
async def test_a_command_says_that_its_certificate_is_of_no_user(folder: Path) -> None:
    async with served(configured(folder)) as running:
        with pytest.raises(NotAuthenticatedError, match="no user has a certificate with one of the names DNS:gateway"):
            async with client(running, folder, "gateway"):
                pass
        with pytest.raises(DeniedError, match="of several users"):
            async with client(running, folder, "both"):
                pass
