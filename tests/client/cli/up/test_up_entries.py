"""Entries of `tunnel up`: each works or fails on its own, and keeps its connections while others change."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import socket
from pathlib import Path

import pytest

from tests.client.cli.commands.rig import target
from tests.client.cli.up.rig import LOOPBACK, UpRig, ask, free_port, free_ports, open_up, private
from tests.client.rig import echo
from tests.servlet.rig import TOKENS, settings
from tests.support.loops import in_loop
from tunnel import attach
from tunnel.encryption.keys import KeyFile, make_key_file
from tunnel_client.cli.up import keeper as keeper_module
from tunnel_client.cli.up.keeper import State
from tunnel_client.cli.up.kinds import KINDS
from tunnel_client.login_file import known_peers_path
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule

pytestmark = pytest.mark.usefixtures("home")


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper_module, "_AGAIN_S", 0.1)
    monkeypatch.setattr(keeper_module, "_AGAIN_DENIED_S", 0.1)


@in_loop
async def test_all_kinds_are_served_in_one_attachment(tmp_path: Path) -> None:
    async with target(echo) as port:
        local, socks, back = free_ports(3)
        entries = f"""
            [forward]
            there = "{local}:{LOOPBACK}:{port}"
            back = "{back}:reports"
            [expose]
            reports = "{LOOPBACK}:{port}"
            [proxy]
            socks = "{socks}"
        """
        async with open_up(tmp_path, entries) as up:
            await up.serves("forward there", "forward back", "expose reports", "proxy socks")
            assert await ask(local, b"forward") == b"forward"
            assert await ask(back, b"service") == b"service"
            reader, writer = await asyncio.open_connection(LOOPBACK, socks)
            writer.write(f"CONNECT {LOOPBACK}:{port} HTTP/1.1\r\n\r\n".encode())
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            writer.write(b"proxy")
            writer.write_eof()
            assert await reader.read(-1) == b"proxy"
            writer.close()
            report = up.supervisor.report()
            assert report.attached
            found = {entry.name: entry for entry in report.entries}
            assert found["forward there"].leads == f"{LOOPBACK}:{local} -> {LOOPBACK}:{port}"
            assert (found["forward there"].connections, found["forward there"].bytes_up) == (1, 7)
            assert found["expose reports"].connections == 1
            assert found["proxy socks"].connections == 1


@in_loop
async def test_a_port_that_is_taken_fails_alone_and_is_served_when_it_is_free(tmp_path: Path) -> None:
    async with target(echo) as port:
        with socket.create_server((LOOPBACK, 0)) as holder:
            taken, free = holder.getsockname()[1], free_port()
            entries = f'[forward]\ntaken = "{taken}:{LOOPBACK}:{port}"\nfree = "{free}:{LOOPBACK}:{port}"'
            async with open_up(tmp_path, entries) as up:
                text = await up.event("not_served")
                assert f"forward taken: cannot listen on {LOOPBACK}:{taken}: something listens there already" in text
                assert "trying again every" in text
                await up.serves("forward free")
                assert await ask(free, b"hello") == b"hello"
                assert up.keeper("forward taken").report().state == "failed"
                assert "something listens there" in up.keeper("forward taken").report().error
                holder.close()
                await up.serves("forward taken")
                assert await ask(taken, b"now") == b"now"
                assert [event for event, _ in up.said].count("not_served") == 0  # it was said only once, above


def _may_listen(*names: str) -> dict[str, object]:
    allowed = Grant(connect=(parse_rule("127.0.0.0/8:*"),), services=("*",), listen=names)
    return {"grants": GrantTable({"ann": allowed, "bob": allowed})}


@in_loop
async def test_a_name_that_is_denied_fails_alone(tmp_path: Path) -> None:
    async with target(echo) as port:
        local = free_port()
        address = f"{LOOPBACK}:{port}"
        entries = f'[expose]\nsecret = "{address}"\nmine = "{address}"\n[forward]\nthere = "{local}:mine"'
        async with open_up(tmp_path, entries, config=_may_listen("mine")) as up:
            assert "expose secret: secret: the relay does not allow this user to listen" in await up.event("not_served")
            await up.serves("expose mine", "forward there")
            assert await ask(local, b"mine") == b"mine"
            assert up.keeper("expose secret").state is State.FAILED


@in_loop
async def test_two_users_a_name_that_another_owns_stays_theirs(tmp_path: Path) -> None:
    async with target(echo) as port, open_up(tmp_path, "[proxy]\nnone = '0'", config=_may_listen("*")) as up:
        await up.serves("proxy none")
        url = f"http://{up.running.addresses[0]}"
        async with attach(url, token=TOKENS["bob"], proxy=None) as bob:
            await bob.start_server(echo, "reports")
            await up.reload(f'[expose]\nreports = "{LOOPBACK}:{port}"\nmine = "{LOOPBACK}:{port}"')
            assert "expose reports: reports: " in await up.event("not_served")
            await up.serves("expose mine")
            reader, writer = await bob.open_connection("reports")
            writer.write(b"bob's")
            writer.write_eof()
            assert await reader.read(-1) == b"bob's"
            writer.close()
            assert up.keeper("expose reports").state is State.FAILED


async def _open(port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection(LOOPBACK, port)
    writer.write(b"open")
    assert await reader.readexactly(4) == b"open"
    return reader, writer


async def _goes_on(streams: tuple[asyncio.StreamReader, asyncio.StreamWriter]) -> None:
    reader, writer = streams
    writer.write(b"still")
    assert await reader.readexactly(5) == b"still"


@in_loop
async def test_an_entry_that_did_not_change_keeps_its_connections(tmp_path: Path) -> None:
    async with target(echo) as port:
        kept, other, new = free_ports(3)
        one, two = f'kept = "{kept}:{LOOPBACK}:{port}"', f'other = "{other}:{LOOPBACK}:{port}"'
        async with open_up(tmp_path, f"[forward]\n{one}\n{two}") as up:
            await up.serves("forward kept", "forward other")
            stays, ends = await _open(kept), await _open(other)
            await up.reload(f'[forward]\n{one}\nnew = "{new}:{LOOPBACK}:{port}"')
            assert await up.event("reloaded") == f"{up.path}: added: forward new; removed: forward other"
            with pytest.raises(ConnectionResetError):
                await ends[0].read()
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(LOOPBACK, other)
            await up.serves("forward new")
            assert await ask(new, b"new") == b"new"
            await _goes_on(stays)
            # a new rate leaves connections open
            await up.reload(f'[forward.kept]\nspec = "{kept}:{LOOPBACK}:{port}"\nrate = "1 MiB/s"')
            assert await up.event("reloaded") == f"{up.path}: changed: forward kept; removed: forward new"
            await _goes_on(stays)
            assert up.keeper("forward kept").traffic is not None
            # a broken file changes nothing, and is said once
            for _ in range(3):
                await up.reload("[forward]\nkept = 'nonsense'")
            text = await up.event("not_reloaded")
            assert "'nonsense' is not a forward specification" in text
            assert "waiting for the file to be mended" in text
            assert up.said == []
            await _goes_on(stays)
            # the file is again as it was before it was broken: nothing is said
            await up.reload(f'[forward.kept]\nspec = "{kept}:{LOOPBACK}:{port}"\nrate = "1 MiB/s"')
            assert up.said == []
            await _goes_on(stays)
            for streams in (stays, ends):
                streams[1].transport.abort()


async def _attached_anew(up: UpRig, entries: str, more: str) -> str:
    await up.reload(entries, more)
    text = await up.event("reloaded")
    await up.event("attached")
    return text


@in_loop
async def test_new_settings_of_the_relay_mean_a_new_attachment(tmp_path: Path) -> None:
    async with target(echo) as port:
        local = free_port()
        entries = f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"'
        async with open_up(tmp_path, entries) as up:
            await up.serves("forward there")
            stays = await _open(local)
            text = await _attached_anew(up, entries, "user-timeout = 20\n")
            assert "attaching anew with the new settings of the relay" in text
            with pytest.raises(ConnectionResetError):
                await stays[0].read()
            await up.serves("forward there")
            assert await ask(local, b"again") == b"again"
            stays[1].transport.abort()


@in_loop
async def test_after_a_refused_token_a_valid_one_is_waited_for_and_the_entries_come_back(tmp_path: Path) -> None:
    async with target(echo) as port:
        local = free_port()
        async with open_up(tmp_path, f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"') as up:
            await up.serves("forward there")
            up.said.clear()
            private(tmp_path / "wrong", f"{TOKENS['ann'][:-2]}xx")
            await up.reload(f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"', 'user-timeout = 30\ncarrier = "poll"\n')
            await up.event("attached")
            private(tmp_path / "token.new", f"{TOKENS['ann'][:-2]}xx").replace(tmp_path / "token")
            await up.reload(f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"', 'user-timeout = 31\ncarrier = "poll"\n')
            text = await up.event("waiting")
            assert "check the token" in text
            assert f"waiting for a change of {up.path} or {tmp_path / 'token'}, and trying again every 300 s" in text
            assert up.supervisor.report().entries[0].state == "waiting"
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(LOOPBACK, local)
            private(tmp_path / "token.new", TOKENS["ann"]).replace(tmp_path / "token")
            up.supervisor._watch.look()
            await up.event("attached")
            await up.serves("forward there")
            assert await ask(local, b"back") == b"back"


@in_loop
async def test_services_are_encrypted_with_the_default_key_once_it_exists(tmp_path: Path, home: Path) -> None:
    file = known_peers_path().with_name("service.pem")
    async with target(echo) as port:
        entries = f'[expose]\nreports = "{LOOPBACK}:{port}"\n'
        async with open_up(tmp_path, entries) as up:
            await up.serves("expose reports")
            url = f"http://{up.running.addresses[0]}"
            assert not file.exists()
            async with attach(url, token=TOKENS["ann"], proxy=None) as client:
                _, writer = await client.open_connection("reports")
                assert not writer.get_extra_info("peer_key")
                writer.transport.abort()
            make_key_file(file)
            await up.reload(entries)
            async with attach(url, token=TOKENS["ann"], proxy=None, peer_key=KeyFile(file).fingerprint) as client:
                await up.serves("expose reports")
                _, writer = await client.open_connection("reports")
                assert writer.get_extra_info("peer_key_verified")
                writer.transport.abort()


@in_loop
async def test_a_slow_entry_does_not_slow_the_others_and_shares_its_rate(tmp_path: Path) -> None:
    async with target(echo) as port:
        slow, fast = free_ports(2)
        entries = f"""
            [forward]
            fast = "{fast}:{LOOPBACK}:{port}"
            [forward.slow]
            spec = "{slow}:{LOOPBACK}:{port}"
            rate = "16 KiB/s"
        """
        async with open_up(tmp_path, entries, 'rate = "50 MiB/s"\n') as up:
            await up.serves("forward slow", "forward fast")
            bulk = await _open(slow)
            bulk[1].write(bytes(8 << 20))  # nine minutes at this rate
            small = await _open(slow)  # of the same entry: its bytes take turns with those of `bulk`
            await _goes_on(small)
            assert await ask(fast, bytes(2 << 20)) == bytes(2 << 20)
            moved = {entry.name: entry for entry in up.supervisor.report().entries}
            assert moved["forward fast"].bytes_down == 2 << 20
            assert moved["forward slow"].bytes_up < 1 << 20
            for streams in (bulk, small):
                streams[1].transport.abort()


@in_loop
async def test_the_rate_of_an_entry_stays_within_that_of_the_file(tmp_path: Path) -> None:
    async with target(echo) as port:
        local = free_port()
        entries = f"""
            [forward.wide]
            spec = "{local}:{LOOPBACK}:{port}"
            rate = "50 MiB/s"
        """
        async with open_up(tmp_path, entries, 'rate = "16 KiB/s"\n') as up:
            await up.serves("forward wide")
            bulk = await _open(local)
            bulk[1].write(bytes(8 << 20))  # nine minutes at the rate of the file
            small = await _open(local)
            await _goes_on(small)
            (entry,) = up.supervisor.report().entries
            assert entry.bytes_up < 1 << 20
            for streams in (bulk, small):
                streams[1].transport.abort()


@in_loop
async def test_entries_stay_while_a_pipe_is_in_the_place_of_a_file(tmp_path: Path) -> None:
    """To read it would stop the whole process until something is written into it."""
    async with target(echo) as port:
        local = free_port()
        async with open_up(tmp_path, f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"') as up:
            await up.serves("forward there")
            stays = await _open(local)
            for name in (up.path, tmp_path / "token"):
                whole = name.read_bytes()
                name.unlink()
                os.mkfifo(name, 0o600)
                for _ in range(2):
                    up.supervisor._watch.look()
                assert "it is no ordinary file" in await up.event("not_reloaded")
                await _goes_on(stays)
                name.unlink()
                name.touch(0o600)
                name.write_bytes(whole)
                for _ in range(2):
                    up.supervisor._watch.look()
            stays[1].transport.abort()


@in_loop
async def test_entries_stay_while_their_file_is_removed(tmp_path: Path) -> None:
    async with target(echo) as port:
        local = free_port()
        entries = f'[forward]\nthere = "{local}:{LOOPBACK}:{port}"'
        async with open_up(tmp_path, entries) as up:
            await up.serves("forward there")
            stays = await _open(local)
            up.path.unlink()
            up.supervisor._watch.look()
            assert "there is no such file" in await up.event("not_reloaded")
            await _goes_on(stays)
            await up.reload(f"{entries}\n[proxy]\nmore = '0'")
            up.supervisor._watch.look()  # a new file counts at the second look: it may still be being written
            assert await up.event("reloaded") == f"{up.path}: added: proxy more"
            await _goes_on(stays)
            stays[1].transport.abort()


def _broken(*arguments: object) -> None:
    raise RuntimeError("a defect")


@in_loop
async def test_a_defect_in_one_entry_does_not_end_the_others(tmp_path: Path) -> None:
    async with target(echo) as port:
        local = free_port()
        whole = dict(KINDS)
        KINDS["proxy"] = dataclasses.replace(whole["proxy"], open=_broken)  # type: ignore[arg-type]
        try:
            entries = f"[forward]\nthere = '{local}:{LOOPBACK}:{port}'\n[proxy]\nbroken = '0'"
            async with open_up(tmp_path, entries) as up:
                assert "proxy broken: internal error: RuntimeError: a defect" in await up.event("not_served")
                await up.serves("forward there")
                assert await ask(local, b"fine") == b"fine"
        finally:
            KINDS.update(whole)


@in_loop
async def test_ranges_of_ports_and_unix_sockets_are_entries_too(tmp_path: Path) -> None:
    async with target(echo) as port:
        path, near = tmp_path / "s", free_port()
        entries = f"""
            [forward]
            sock = "unix:{path}:{LOOPBACK}:{port}"
            range = "{near}-{near}:{LOOPBACK}:{port}-{port}"
        """
        async with open_up(tmp_path, entries) as up:
            await up.serves("forward sock", "forward range")
            assert await ask(near, b"range") == b"range"
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"socket")
            writer.write_eof()
            assert await reader.read(-1) == b"socket"
            writer.close()
            assert up.keeper("forward sock").leads == f"unix:{path} -> {LOOPBACK}:{port}"
            await up.reload("[proxy]\nother = '0'")
            await up.event("reloaded")
            assert not path.exists()


@in_loop
async def test_a_forward_that_no_rule_allows_is_shown_and_served_once_a_rule_allows_it(tmp_path: Path) -> None:
    rule = Grant(connect=(parse_rule("127.0.0.0/8:*"),))
    async with target(echo) as port:
        local, other = free_ports(2)
        entries = f"""
            [forward]
            there = "{local}:{LOOPBACK}:{port}"
            missing = "{other}:db.internal"
        """
        async with open_up(tmp_path, entries, config={"grants": GrantTable({"ann": rule})}) as up:
            await up.serves("forward there")
            text = await up.event("not_served", "forward missing")
            for part in ("no rule allows the service db.internal", 'services = ["db.internal"]', "db.internal:PORT"):
                assert part in text
            assert up.keeper("forward missing").state is State.FAILED
            with pytest.raises(ConnectionRefusedError):
                await asyncio.open_connection(LOOPBACK, other)
            allowed = Grant(connect=rule.connect, services=("db.internal",))
            up.running.relay.reload(settings(exit="inline", grants=GrantTable({"ann": allowed})))
            await up.serves("forward missing")
            assert await ask(local, b"goes on") == b"goes on"
