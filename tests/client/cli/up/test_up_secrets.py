"""New tokens, headers and passwords of `tunnel up` are used from the next request on. Of these, only the token of
another user resets connections."""

from __future__ import annotations

import asyncio
from pathlib import Path
from random import Random
from types import TracebackType
from typing import Self

import aiohttp
import pytest
from aiohttp import web

from tests.client.cli.commands.rig import target
from tests.client.cli.up.rig import LOOPBACK, UpRig, ask, free_port, open_up, private
from tests.client.rig import echo
from tests.servlet.rig import KEYS, TOKENS, relay, settings, until
from tests.support.loops import in_loop
from tests.support.proxies import UpstreamProxy
from tunnel import refusals
from tunnel_servlet.access.tokens import TokenTable, make_token
from tunnel_servlet.web.running import RunningRelay

pytestmark = pytest.mark.usefixtures("home")

NEW_TOKEN, _NEW_KEY = make_token(Random(77))
CARRIERS = ["poll", "stream", "link", "websocket"]
Conversation = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def let_in(running: RunningRelay, *, old: bool = True, new: bool = True) -> None:
    """Let ann in with her old token, with her new one, or with both."""
    ann = [*KEYS["ann"]] * old + [_NEW_KEY] * new
    running.relay.reload(settings(tokens=TokenTable({**KEYS, "ann": ann}), exit="inline"))


class Gateway:
    """A gateway before a relay. It answers 403 to requests that do not carry its key in the header X-Key."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.relay = ""  # the relay's address; while this is empty, the gateway answers 503
        self.keys: list[str] = []  # the keys that the requests carried, in order

    async def __aenter__(self) -> Self:
        app = web.Application(client_max_size=1 << 24)
        app.router.add_post("/{path:.*}", self._pass_on)
        self._session = aiohttp.ClientSession(auto_decompress=False)
        self._runner = web.AppRunner(app, access_log=None, handle_signals=False, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, LOOPBACK, 0).start()
        self.url = f"http://{LOOPBACK}:{self._runner.addresses[0][1]}"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self._runner.cleanup()
        await self._session.close()

    async def _pass_on(self, request: web.Request) -> web.Response:
        key = request.headers.get("X-Key", "")
        self.keys.append(key)
        if key != self.key:
            return web.Response(status=403, text="no such key")
        if not self.relay:
            return web.Response(status=503)
        kept = {name: value for name, value in request.headers.items() if name != "Host"}
        url = f"http://{self.relay}{request.path}"
        async with self._session.post(url, data=await request.read(), headers=kept) as answer:
            kind = {"Content-Type": answer.headers["Content-Type"]}
            return web.Response(status=answer.status, body=await answer.read(), headers=kind)


async def goes_on(conversation: Conversation, words: bytes = b"still there") -> None:
    reader, writer = conversation
    writer.write(words)
    assert await reader.readexactly(len(words)) == words


def replace(path: Path, text: str) -> None:
    private(path.with_suffix(".new"), text).replace(path)


async def renew(up: UpRig, file: str, text: str) -> str:
    """Replace a file with a secret, and return what `tunnel up` says about it."""
    replace(up.path.parent / file, text)
    up.supervisor._watch.look()
    return await up.event("reloaded")


@pytest.mark.parametrize("carrier", CARRIERS)
@in_loop
async def test_a_rotation_of_the_token_interrupts_no_connection(carrier: str, tmp_path: Path) -> None:
    local = free_port()
    async with target(echo) as port:
        entries = f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"'
        async with open_up(tmp_path, entries, f'carrier = "{carrier}"\n') as up:
            await up.serves("forward there")
            stays = await asyncio.open_connection(LOOPBACK, local)
            await goes_on(stays)
            let_in(up.running)
            assert "the new secrets are used from the next request on" in await renew(up, "token", NEW_TOKEN)
            await goes_on(stays)
            let_in(up.running, old=False)
            for _ in range(3):
                await goes_on(stays)
            assert await ask(local, b"another") == b"another"
            assert not [event for event, _ in up.said if event in ("waiting", "attached")]
            stays[1].transport.abort()


@in_loop
async def test_a_new_token_is_used_even_if_it_comes_before_the_refusal_of_the_old_one_is_noticed(
    tmp_path: Path,
) -> None:
    async with open_up(tmp_path, '[forward]\nthere = "0:reports"', 'carrier = "poll"\n') as up:
        await up.event("attached")
        let_in(up.running, old=False)
        attachment = up.supervisor._attachment
        assert attachment is not None
        while attachment.refusal is None:  # noqa: ASYNC110 - it has no event
            await asyncio.sleep(0)
        replace(up.path.parent / "token", NEW_TOKEN)
        up.supervisor._watch.look()
        await up.event("attached")


@pytest.mark.parametrize("changed", ["one", "two"])
@in_loop
async def test_the_token_of_one_of_several_relays_is_renewed_alone(changed: str, tmp_path: Path) -> None:
    """Connections through the other relay go on, and so do those through this one."""
    local = free_port()
    async with target(echo) as port, relay(settings(exit="inline", switch={"settle_us": 1})) as other:
        url = f"http://{other.addresses[0]}"
        private(tmp_path / "two", TOKENS["ann"])
        more = f'[[relay.further]]\nurl = "{url}"\ntoken-file = "two"\n'
        async with open_up(tmp_path, f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"', more) as up:
            await up.serves("forward there")
            attachment = up.supervisor._attachment
            assert attachment is not None
            stays = await asyncio.open_connection(LOOPBACK, local)
            await goes_on(stays)
            running, file = (up.running, "token") if changed == "one" else (other, "two")
            let_in(running)
            where = f"http://{running.addresses[0]}"
            said = await renew(up, file, NEW_TOKEN)
            assert f"the new secrets for {where} are used from the next request on" in said
            let_in(running, old=False)
            for _ in range(3):
                await goes_on(stays)
            assert up.supervisor._attachment is attachment
            up.running.relay.drain()
            await until(lambda: attachment.stats().relays[-1].is_used)
            assert await ask(local, b"another") == b"another"
            stays[1].transport.abort()


@in_loop
async def test_a_relay_that_refuses_the_token_is_asked_again_while_another_one_serves(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(refusals, "_AGAIN_S", ((Exception, 0.1),))
    async with relay(settings(exit="inline", switch={"settle_us": 1})) as other:
        let_in(other, old=False)
        private(tmp_path / "two", TOKENS["ann"])
        url = f"http://{other.addresses[0]}"
        more = f'[[relay.further]]\nurl = "{url}"\ntoken-file = "two"\n'
        async with open_up(tmp_path, '[expose]\nreports = "127.0.0.1:1"', more) as up:
            assert "trying again every 0.1 s; other relays serve" in await up.event("waiting", f"{url} cannot be used")
            attachment = up.supervisor._attachment
            assert attachment is not None
            let_in(other)
            await until(lambda: [each.attached for each in attachment.stats().relays] == [True, True])
            assert not [text for event, text in up.said if event in ("waiting", "attached")]
            assert up.supervisor._attachment is attachment


@pytest.mark.parametrize("carrier", ["poll", "link"])
@in_loop
async def test_a_wrong_new_token_ends_no_connection_while_the_old_one_is_valid(carrier: str, tmp_path: Path) -> None:
    local = free_port()
    async with target(echo) as port:
        entries = f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"'
        async with open_up(tmp_path, entries, f'carrier = "{carrier}"\n') as up:
            await up.serves("forward there")
            stays = await asyncio.open_connection(LOOPBACK, local)
            await renew(up, "token", f"{NEW_TOKEN[:-2]}xx")
            text = await up.event("waiting", "the new secrets are refused (HTTP 401)")
            assert f"waiting for a change of {up.path} or {tmp_path / 'token'}" in text
            await goes_on(stays)
            assert up.supervisor.report().trouble == text
            let_in(up.running)
            await renew(up, "token", NEW_TOKEN)
            await goes_on(stays)
            assert not up.supervisor.trouble
            let_in(up.running, old=False)
            await goes_on(stays)
            stays[1].transport.abort()


@pytest.mark.parametrize("carrier", CARRIERS)
@in_loop
async def test_two_users_with_the_token_of_another_user_the_old_attachment_is_given_up(
    carrier: str, tmp_path: Path
) -> None:
    local = free_port()
    async with target(echo) as port:
        entries = f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"'
        async with open_up(tmp_path, entries, f'carrier = "{carrier}"\n') as up:
            await up.serves("forward there")
            stays = await asyncio.open_connection(LOOPBACK, local)
            await goes_on(stays)
            up.said.clear()
            await renew(up, "token", TOKENS["bob"])
            await up.event("waiting", "the new token belongs to another user: attaching anew as that user")
            await up.event("attached")
            with pytest.raises(ConnectionResetError):
                await stays[0].read()
            await up.serves("forward there")
            assert await ask(local, b"as bob") == b"as bob"
            stays[1].transport.abort()


@pytest.mark.parametrize("first", ["the gateway", "the file"])
@in_loop
async def test_a_new_header_is_used_whether_the_gateway_or_the_file_changes_first(first: str, tmp_path: Path) -> None:
    local = free_port()
    private(tmp_path / "header", "X-Key: old")
    async with target(echo) as port, Gateway("old") as gateway:
        entries = f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"'
        more = 'carrier = "poll"\nheader-file = "header"\n'
        async with open_up(tmp_path, entries, more, url=gateway.url) as up:
            gateway.relay = str(up.running.addresses[0])
            await up.serves("forward there")
            stays = await asyncio.open_connection(LOOPBACK, local)
            await goes_on(stays)
            if first == "the gateway":
                gateway.key = "new"
                await renew(up, "header", "X-Key: new")
            else:
                await renew(up, "header", "X-Key: new")
                await up.event("waiting", "the new secrets are refused (HTTP 403)")
                await goes_on(stays)
                gateway.key = "new"
            await goes_on(stays)
            assert gateway.keys[-1] == "new"
            stays[1].transport.abort()


@in_loop
async def test_a_new_password_is_sent_to_the_proxy_and_resets_no_connection(tmp_path: Path) -> None:
    local = free_port()
    async with target(echo) as port, UpstreamProxy(user="me:old-secret") as proxy:
        url = f"http://{{}}@{LOOPBACK}:{proxy.port}"
        private(tmp_path / "proxy.url", url.format("me:old-secret"))
        entries = f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"'
        more = 'carrier = "poll"\n'
        async with open_up(tmp_path, entries, more, proxy='proxy-file = "proxy.url"') as up:
            await up.serves("forward there")
            stays = await asyncio.open_connection(LOOPBACK, local)
            await goes_on(stays)
            proxy.demand("me:new-secret")
            await renew(up, "proxy.url", url.format("me:new-secret"))
            proxy.cut()
            await goes_on(stays)
            assert await ask(local, b"another") == b"another"
            assert not [text for event, text in up.said if event == "waiting"]
            stays[1].transport.abort()


@in_loop
async def test_a_refused_password_is_not_sent_again_after_another_setting_has_changed(tmp_path: Path) -> None:
    local = free_port()
    async with target(echo) as port, UpstreamProxy(user="me:secret") as proxy:
        url = f"http://{{}}@{LOOPBACK}:{proxy.port}"
        private(tmp_path / "proxy.url", url.format("me:wrong"))
        entries = f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"'
        async with open_up(tmp_path, entries, proxy='proxy-file = "proxy.url"') as up:
            await up.event("waiting", "the same ones are not sent again")
            asked = len(proxy.heads)
            await up.reload(entries, "pull-interval = 0.5\n")
            assert "the user and password are still the same" in await up.event("reloaded")
            await up.reload(entries, 'carrier = "poll"\n')
            assert "the user and password are still the same" in await up.event("reloaded")
            assert len(proxy.heads) == asked
            await renew(up, "proxy.url", url.format("me:secret"))
            await up.serves("forward there")
