"""The command tunnel-relay exit: attaching, refusals by the relay, and signals."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from loadtests.harness.ports import hold_port
from tests.metrics.rig import get
from tests.servlet.command.rig import Process, process, small_process
from tests.servlet.rig import KEYS, LOOPBACK, TOKENS, relay, settings, until
from tests.support.loops import in_loop
from tunnel import Attachment, RefusedError, RejectReason, ResetError, StreamReader, StreamWriter, attach
from tunnel_servlet.access.tokens import TokenTable

Streams = tuple[StreamReader, StreamWriter]


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@in_loop
async def test_an_exit_attaches_and_ends_on_a_signal(number: signal.Signals, code: int) -> None:
    async with relay() as running:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "--name", "berlin", "--allow", "127.0.0.1:1", "--proxy", ""]
        async with process(*arguments, TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            await exit_.line("attached to")
            assert running.relay.host.switch.stats().exits == 1
            exit_.process.send_signal(number)
            assert await exit_.ended() == code


@in_loop
async def test_a_program_learns_when_an_exit_is_ready_and_when_its_relay_is_away() -> None:
    async with relay() as running:
        at = running.addresses[0]
        arguments = ["exit", "--relay", f"http://{at}", "--name", "berlin", "--allow", "127.0.0.1:1", "--proxy", "none"]
        async with process(*arguments, "--json", TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            ready = await exit_.event("attached")
            assert (ready["relay"], ready["name"], ready["level"]) == (f"http://{at}", "berlin", "info")
            await running.close()
            assert "trying again" in (await exit_.event("disconnected"))["text"]
            async with relay(settings(listen=(msgspec.structs.replace(LOOPBACK, port=at.port),))):
                await exit_.event("reconnected")
                exit_.process.send_signal(signal.SIGTERM)
                assert await exit_.ended() == 0
        assert not any("attached to" in line for line in exit_.lines)


@in_loop
async def test_an_exit_tells_its_metrics_and_whether_it_has_a_relay() -> None:
    async with relay(settings(switch={"settle_us": 1})) as running, echoing() as port:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "--allow", f"127.0.0.1:{port}", "--proxy", "none", "--metrics", "0"]
        async with process(*arguments, "--json", TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            host, _, number = (await exit_.event("listening"))["url"].split("/")[2].partition(":")
            await exit_.event("attached")
            assert await get((host, int(number)), "/readyz") == (200, "ready\n")
            async with attach(url, token=TOKENS["ann"], proxy=None) as client:
                _, writer = await client.open_connection("127.0.0.1", port, timeout=30)
                status, page = await get((host, int(number)), "/metrics")
                assert status == 200
                assert 'tunnel_dials_total{outcome="opened"} 1.0' in page
                assert "tunnel_endpoint_attached 1.0" in page
                assert f":{port}" not in page
                writer.close()
                await writer.wait_closed()
            await running.close()
            await exit_.event("disconnected")
            assert await get((host, int(number)), "/readyz") == (503, "no relay\n")
            assert (await get((host, int(number)), "/livez"))[0] == 200
            exit_.process.send_signal(signal.SIGTERM)
            assert await exit_.ended() == 0


@in_loop
async def test_two_users_one_cannot_take_all_descriptors_of_an_exit() -> None:
    async with relay(settings(switch={"settle_us": 1})) as running, echoing() as port:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "--allow", f"127.0.0.1:{port}", "--proxy", "none"]
        async with (
            small_process(100, *arguments, TUNNEL_TOKEN=TOKENS["exits"]) as exit_,
            attach(url, token=TOKENS["ann"], proxy=None, linger=0.1) as ann,
            attach(url, token=TOKENS["bob"], proxy=None, linger=0.1) as bob,
        ):
            await exit_.line("attached to")
            opened = [(await ann.open_connection("127.0.0.1", port, timeout=30))[1] for _ in range(38)]  # half of 75
            with pytest.raises(RefusedError) as refused:
                await ann.open_connection("127.0.0.1", port, timeout=30)
            assert refused.value.reason is RejectReason.BUSY
            opened.append((await bob.open_connection("127.0.0.1", port, timeout=30))[1])
            for writer in opened:
                writer.close()


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    """Run a target that sends back what it gets, and yield its port."""

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionResetError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    async with await asyncio.start_server(echo, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@asynccontextmanager
async def exit_with_a_connection() -> AsyncIterator[tuple[Process, Attachment, StreamReader, StreamWriter]]:
    """Run an exit in a process, and open a connection through it to a target that sends back what it gets."""
    async with relay(settings(switch={"settle_us": 1})) as running, echoing() as port:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "--allow", f"127.0.0.1:{port}", "--proxy", "none"]
        async with process(*arguments, TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            await exit_.line("attached to")
            async with attach(url, token=TOKENS["ann"], proxy=None) as client:
                reader, writer = await client.open_connection("127.0.0.1", port, timeout=30)
                writer.write(b"one")
                assert await reader.readexactly(3) == b"one"
                yield exit_, client, reader, writer
                writer.transport.abort()


@in_loop
async def test_two_users_an_exit_reads_its_rules_again_and_ends_what_they_no_longer_allow(tmp_path: Path) -> None:
    def rules(*users: str) -> None:
        tables = [f'[users.{user}]\nconnect = ["127.0.0.1:{port}"]\n' for user in users]
        (tmp_path / "new.toml").write_text("".join(tables))
        (tmp_path / "new.toml").replace(tmp_path / "exit.toml")

    async def says(client: Attachment, text: bytes, streams: Streams | None = None) -> Streams:
        reader, writer = streams or await client.open_connection("127.0.0.1", port, timeout=30)
        writer.write(text)
        assert await reader.readexactly(len(text)) == text
        return reader, writer

    async with relay() as running, echoing() as port:
        url = f"http://{running.addresses[0]}"
        rules("ann", "bob")
        arguments = ["exit", "--relay", url, "-c", str(tmp_path / "exit.toml"), "--proxy", "none"]
        async with (
            process(*arguments, TUNNEL_TOKEN=TOKENS["exits"]) as exit_,
            attach(url, token=TOKENS["ann"], proxy=None, linger=0.1) as ann,
            attach(url, token=TOKENS["bob"], proxy=None, linger=0.1) as bob,
        ):
            await exit_.line("attached to")
            mine, theirs = await says(ann, b"one"), await says(bob, b"one")
            rules()
            assert "would dial nothing" in await exit_.line("not_reloaded")
            await says(ann, b"two", mine)
            rules("bob")
            await exit_.line("reloaded")
            with pytest.raises(ResetError, match="the rules of the exit were changed"):
                await mine[0].read()
            await says(bob, b"two", theirs)
            exit_.process.send_signal(signal.SIGHUP)
            await exit_.line("reloaded")
            for _, writer in (mine, theirs):
                writer.transport.abort()


@in_loop
async def test_an_exit_waits_for_connections_that_move_bytes_and_refuses_new_ones() -> None:
    async with exit_with_a_connection() as (exit_, client, reader, writer):
        exit_.process.send_signal(signal.SIGTERM)
        text = json.loads(await exit_.line("stopping"))["text"]
        assert text == "waiting for 1 open connection until no byte has moved for 3 s; a second signal cuts them"
        writer.write(b"two")
        assert await reader.readexactly(3) == b"two"
        with pytest.raises(RefusedError, match="no exit is attached"):
            await client.open_connection("127.0.0.1", 1, timeout=30)
        assert await exit_.ended() == 0
        assert any("moved no byte for 3 s" in line for line in exit_.lines)
        with pytest.raises(ConnectionError):
            await reader.read()


@in_loop
async def test_a_second_signal_cuts_the_connections_of_an_exit() -> None:
    async with exit_with_a_connection() as (exit_, _, reader, _):
        exit_.process.send_signal(signal.SIGTERM)
        await exit_.line("stopping")
        exit_.process.send_signal(signal.SIGTERM)
        assert await exit_.ended() == 0
        assert not any("moved no byte" in line for line in exit_.lines)
        with pytest.raises(ConnectionError):
            await reader.read()


@in_loop
async def test_an_exit_whose_token_is_revoked_ends_with_code_4() -> None:
    async with relay() as running:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "--allow", "127.0.0.1:1", "--proxy", ""]
        async with process(*arguments, TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            await exit_.line("attached to")
            running.relay.reload(settings(tokens=TokenTable({"ann": KEYS["ann"]})))
            assert await exit_.ended() == 4


@in_loop
async def test_an_exit_that_is_told_to_give_up_ends_with_code_6() -> None:
    with hold_port() as port:
        arguments = ["exit", "--relay", f"http://127.0.0.1:{port}", "--allow", "127.0.0.1:1", "--proxy", "none"]
        async with process(*arguments, "--give-up-after", "1", TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            assert await exit_.ended() == 6
            assert "the relay has not answered for 1 s (the connection was refused): check the path" in exit_.lines[-1]


@in_loop
async def test_an_exit_with_a_wrong_token_ends_with_code_4() -> None:
    async with relay() as running:
        url = f"http://{running.addresses[0]}"
        async with process("exit", "--relay", url, "--allow", "127.0.0.1:1", TUNNEL_TOKEN="tnl_x") as exit_:
            assert await exit_.ended() == 4


@in_loop
async def test_an_exit_whose_user_may_not_be_one_ends_with_code_5() -> None:
    async with relay() as running:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "--allow", "127.0.0.1:1", "--proxy", ""]
        async with process(*arguments, TUNNEL_TOKEN=TOKENS["ann"]) as exit_:
            assert await exit_.ended() == 5
            why = "ann may not be an exit: exit = true is missing under [users.ann]"
            assert [why in line for line in exit_.lines] == [False, True]  # after whom it asks; not in the log, too


@in_loop
async def test_an_exit_quotes_an_answer_that_is_not_from_a_relay() -> None:
    heads: list[bytes] = []

    async def hotel(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heads.append(await reader.readuntil(b"\r\n\r\n"))
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 20\r\nConnection: close\r\n\r\n<html>Welcome, guest")
        writer.close()

    server = await asyncio.start_server(hotel, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        gate = ["--header", "X-Key: k", "--hostname", "relay.example"]
        arguments = ["exit", "--relay", url, "--allow", "127.0.0.1:1", "--proxy", "", *gate]
        async with process(*arguments, TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            assert "Welcome, guest" in json.loads(await exit_.line("not_attached"))["text"]
            exit_.process.send_signal(signal.SIGTERM)
            assert await exit_.ended() == 0
    assert b"\r\nHost: relay.example\r\n" in heads[0]
    assert b"\r\nX-Key: k\r\n" in heads[0]


@in_loop
async def test_two_exits_without_a_name_share_the_connections_and_a_restarted_one_replaces_itself(
    tmp_path: Path,
) -> None:
    """The old connections of an exit that was killed end when it is back, and not after the attachment timeout."""
    home = {"XDG_CONFIG_HOME": str(tmp_path), "TUNNEL_TOKEN": TOKENS["exits"]}
    async with relay() as running, echoing() as port:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "--allow", f"127.0.0.1:{port}", "--proxy", "none"]
        stats = running.relay.host.switch.stats
        async with process(*arguments, **home) as first, attach(url, token=TOKENS["ann"], proxy=None) as client:
            name = (await first.line("attached to")).split()[-1]
            async with process(*arguments, **home) as second:
                assert (await second.line("attached to")).split()[-1] != name
                assert stats().exits == 2
                streams = [await client.open_connection("127.0.0.1", port, timeout=30) for _ in range(2)]
                first.process.kill()
                await first.process.wait()
                async with process(*arguments, **home) as third:
                    assert (await third.line("attached to")).split()[-1] == name
                    assert (stats().exits, stats().counters.attachments_replaced) == (2, 1)
                    ended = {asyncio.ensure_future(reader.read()): writer for reader, writer in streams}
                    done, open_ones = await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
                    assert [type(one.exception()) for one in done] == [ResetError]
                    (reading,) = open_ones  # the connection of the second exit goes on
                    reading.cancel()
                    writer = ended[reading]
                    writer.transport.abort()


@in_loop
async def test_an_exit_that_another_one_replaces_ends_with_the_reason() -> None:
    async with relay() as running:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "--name", "berlin", "--allow", "127.0.0.1:1", "--proxy", "none"]
        async with process(*arguments, TUNNEL_TOKEN=TOKENS["exits"]) as first:
            await first.line("attached to")
            async with process(*arguments, TUNNEL_TOKEN=TOKENS["exits"]) as second:
                await second.line("attached to")
                assert await first.ended() == 5
    assert "a newer endpoint of this user has the name 'berlin': start each under a name of its own" in first.lines[-1]


@in_loop
async def test_one_exit_serves_two_relays_and_outlives_one_of_them() -> None:
    async with echoing() as port, relay(settings()) as first, relay(settings()) as second:
        urls = [f"http://{running.addresses[0]}" for running in (first, second)]
        arguments = ["exit", "--relay", urls[0], "--relay", urls[1], "--name", "x", "--allow", f"127.0.0.1:{port}"]
        token = TOKENS["exits"]
        async with (
            process(*arguments, "--proxy", "none", TUNNEL_TOKEN=f"{token} {token}") as exit_,
            attach(urls[1], token=TOKENS["ann"], proxy=None) as client,
        ):
            await exit_.line("attached to")
            await until(lambda: second.relay.host.switch.stats().exits == 1)
            await first.close()
            _, writer = await client.open_connection("127.0.0.1", port, timeout=30)
            writer.transport.abort()
            exit_.process.send_signal(signal.SIGTERM)
            assert await exit_.ended() == 0


@in_loop
async def test_an_exit_at_two_relays_needs_a_token_for_each() -> None:
    arguments = ["exit", "--relay", "http://a", "--relay", "http://b", "--allow", "127.0.0.1:1"]
    async with process(*arguments, TUNNEL_TOKEN="one") as exit_:
        await exit_.line("2 relays are named, but 1 token")
        assert await exit_.ended() == 2


@pytest.mark.parametrize(
    "option", [["--header", "X-Gate: a"], ["--hostname", "a"], ["--sni", "a"], ["--cert", "a.pem"]]
)
@in_loop
async def test_what_one_relay_alone_may_know_is_refused_with_two_relays(option: list[str]) -> None:
    """It held for the first of them, and no one was told."""
    named = ["--relay", "https://one.example", "--relay", "https://two.example"]
    async with process("exit", *named, *option, "--allow", "127.0.0.1:1", TUNNEL_TOKEN="a b") as exit_:
        assert await exit_.ended() == 2
    assert any(
        f"{option[0]} holds for one relay, but 2 are named: run an exit for each" in line for line in exit_.lines
    )
