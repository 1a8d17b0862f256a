"""The exit, attached to a switch or a relay: what it dials, what it refuses and why, how it joins two connections."""

from __future__ import annotations

import asyncio
import resource
import socket
import struct
from collections import Counter
from contextlib import suppress
from ipaddress import ip_address
from typing import Any
from unittest.mock import Mock

import pytest

from tests.servlet.exit.rig import addresses, close, echo, tunnel, two_clients
from tests.servlet.rig import TOKENS, relay, settings, until
from tests.support.buffers import users_who_ask
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import DeniedError, ExitRequest, LostError, RefusedError, RejectReason, StreamReader, StreamWriter, attach
from tunnel.streams.splice import Side
from tunnel.wire import Target, TargetKind
from tunnel_servlet.access.addresses import IPAddress
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import Ruleset, parse_rule
from tunnel_servlet.exit.dialer import Dialer, DialWitness
from tunnel_servlet.exit.resolver import resolve

AS_ANN: dict[str, Any] = {"token": TOKENS["ann"], "proxy": None, "linger": 0.1}


@in_loop
async def test_bytes_and_ends_of_file_go_both_ways() -> None:
    async with target(echo) as port, tunnel("127.0.0.1:*") as (client, dialer):
        reader, writer = await client.open_connection("127.0.0.1", port)
        payload = bytes(range(256)) * 8000
        writer.write(payload)
        writer.write_eof()
        assert await reader.read(-1) == payload
        await close(writer)
    assert dialer.connections == 0


@in_loop
async def test_a_server_may_speak_first_and_end_first() -> None:
    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"220 hello\r\n")
        writer.write_eof()
        assert await reader.read(-1) == b"QUIT\r\n"

    async with target(greet) as port, tunnel("127.0.0.1:*") as (client, _):
        reader, writer = await client.open_connection("127.0.0.1", port)
        assert await reader.read(-1) == b"220 hello\r\n"
        writer.write(b"QUIT\r\n")
        await writer.flush()
        await close(writer)


@in_loop
async def test_a_reset_by_the_target_is_an_error_not_an_end_of_stream() -> None:
    async def reset(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        sock = writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))

    async with target(reset) as port, tunnel("127.0.0.1:*") as (client, _):
        reader, writer = await client.open_connection("127.0.0.1", port)
        writer.write(b"x")
        with pytest.raises(LostError):
            await reader.read(-1)
        writer.close()


@in_loop
async def test_an_abort_by_the_client_resets_the_target() -> None:
    outcome: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"x")
        try:
            outcome.set_result(await reader.read(-1))
        except ConnectionResetError as error:
            outcome.set_result(error)

    async with target(wait) as port, tunnel("127.0.0.1:*") as (client, _):
        reader, writer = await client.open_connection("127.0.0.1", port)
        await reader.readexactly(1)
        writer.transport.abort()
        assert isinstance(await outcome, ConnectionResetError)


@in_loop
async def test_a_target_that_writes_to_a_closed_client_gets_an_error() -> None:
    ended: asyncio.Future[BaseException] = asyncio.get_running_loop().create_future()

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        except ConnectionError as error:
            ended.set_result(error)

    async with target(flood) as port, tunnel("127.0.0.1:*") as (client, _):
        reader, writer = await client.open_connection("127.0.0.1", port)
        await reader.readexactly(100_000)
        writer.close()
        assert isinstance(await ended, ConnectionError)


@in_loop
async def test_a_slow_reader_causes_back_pressure_on_the_target() -> None:
    written = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal written
        while True:  # until the reset
            writer.write(bytes(1 << 16))
            written += 1 << 16
            await writer.drain()

    # All buffers together hold far less than a target without back-pressure would have written.
    async with target(flood) as port, tunnel("127.0.0.1:*") as (client, _):
        _, writer = await client.open_connection("127.0.0.1", port, limit=1 << 16)
        before = -1
        while before != written:
            before = written
            for _ in range(2000):
                await asyncio.sleep(0)
        assert written < 64 << 20
        writer.transport.abort()


@in_loop
async def test_the_reason_of_a_refusal_reaches_the_client() -> None:
    free = socket.socket()
    free.bind(("127.0.0.1", 0))
    port = free.getsockname()[1]  # nothing listens there
    async with tunnel("127.0.0.1:*", "a.example:80", resolve=addresses()) as (client, dialer):
        with pytest.raises(RefusedError) as refused:
            await client.open_connection("127.0.0.1", port)
        assert refused.value.reason is RejectReason.REFUSED
        with pytest.raises(RefusedError) as unresolved:
            await client.open_connection("a.example", 80)
        assert unresolved.value.reason is RejectReason.NAME_NOT_RESOLVED
        with pytest.raises(DeniedError, match=r"no rule allows 127\.0\.0\.2"):
            await client.open_connection("127.0.0.2", 80)
        assert dialer.connections == 0
    free.close()


@in_loop
async def test_an_error_of_the_resolver_is_reported_as_an_unresolved_name() -> None:
    async def fail(host: str, port: int) -> list[IPAddress]:
        raise socket.gaierror(socket.EAI_NONAME, "unknown")

    async with tunnel("*:*", resolve=fail) as (client, _):
        with pytest.raises(RefusedError) as unresolved:
            await client.open_connection("a.example", 80)
        assert unresolved.value.reason is RejectReason.NAME_NOT_RESOLVED


@in_loop
async def test_a_target_whose_name_is_not_resolved_in_time_is_given_up() -> None:
    async def never(host: str, port: int) -> list[IPAddress]:
        await asyncio.Event().wait()
        return []

    async with tunnel("*:*", resolve=never, dial_seconds=0.01) as (client, _):
        with pytest.raises(RefusedError) as late:
            await client.open_connection("a.example", 80)
        assert late.value.reason is RejectReason.TIMED_OUT


class Dead(Dialer):
    """A dialer for which 127.0.0.9 never answers."""

    async def _open_side(self, request: ExitRequest, literal: str, port: int) -> Side:
        if literal == "127.0.0.9":
            await asyncio.Event().wait()
        return await super()._open_side(request, literal, port)


@in_loop
async def test_a_dead_address_leaves_time_for_the_next() -> None:
    options: dict[str, Any] = {"resolve": addresses("127.0.0.9", "127.0.0.1"), "dial_seconds": 2, "kind": Dead}
    async with target(echo) as port, tunnel("*:*", "127.0.0.0/8:*", **options) as (client, _):
        _, writer = await client.open_connection("two.localhost", port)
        await close(writer)


@in_loop
async def test_each_address_gets_an_equal_share_of_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    whole_s, timeout = 3000.0, asyncio.timeout
    shares: list[float | None] = []

    def note(seconds: float | None) -> asyncio.Timeout:
        """Let what gets a share of the time end at once."""
        if seconds is not None and not 100 < seconds < whole_s:
            return timeout(seconds)
        shares.append(seconds)
        return timeout(0)

    options: dict[str, Any] = {"resolve": addresses("127.0.0.9", "127.0.0.9", "127.0.0.9"), "kind": Dead}
    async with tunnel("*:*", "127.0.0.0/8:*", dial_seconds=whole_s, **options) as (client, _):
        monkeypatch.setattr(asyncio, "timeout", note)
        with pytest.raises(RefusedError):
            await client.open_connection("three.localhost", 80)
        monkeypatch.undo()
    assert shares == [pytest.approx(whole_s / 3, rel=0.1), pytest.approx(whole_s / 2, rel=0.1), None]


@in_loop
async def test_a_name_is_resolved_once_and_each_address_is_checked() -> None:
    """Scenario 40: a name whose address changes between check and use, and a name that also has an internal address."""
    asked: list[str] = []

    async def rebind(host: str, port: int) -> list[IPAddress]:
        asked.append(host)
        return [ip_address("169.254.169.254" if len(asked) > 1 else "127.0.0.1"), ip_address("10.0.0.1")]

    async with target(echo) as port, tunnel("a.example:*", "127.0.0.1:*", resolve=rebind) as (client, _):
        _, writer = await client.open_connection("A.Example.", port)
        await close(writer)
        assert asked == ["a.example"]
        with pytest.raises(DeniedError, match=r"a\.example has no address that the rules allow; the log of"):
            await client.open_connection("a.example", port)
        assert asked == ["a.example"] * 2


@in_loop
async def test_the_next_address_is_tried_when_one_refuses() -> None:
    names = addresses("127.0.0.9", "127.0.0.1")
    async with target(echo) as port, tunnel("a.example:*", "127.0.0.0/8:*", resolve=names) as (client, _):
        _, writer = await client.open_connection("a.example", port)
        await close(writer)


@in_loop
async def test_a_mapped_address_is_dialled_as_its_ipv4_address() -> None:
    async with target(echo) as port, tunnel("127.0.0.1:*") as (client, _):
        _, writer = await client.open_connection("::ffff:127.0.0.1", port)
        await close(writer)


@in_loop
async def test_a_full_exit_refuses_with_a_reason() -> None:
    async with target(echo) as port, tunnel("127.0.0.1:*", connections_max=1) as (client, dialer):
        _, writer = await client.open_connection("127.0.0.1", port)
        with pytest.raises(RefusedError) as busy:
            await client.open_connection("127.0.0.1", port)
        assert busy.value.reason is RejectReason.BUSY
        assert dialer.connections == 1
        await close(writer)


@in_loop
async def test_two_users_no_user_has_more_connections_than_stay_free_for_others() -> None:
    """Of 6 connections, ann gets 3, and bob then gets 2."""
    async with target(echo) as port, two_clients("127.0.0.1:*", connections_max=6) as (ann, bob, dialer):
        writers = []
        for client, count in ((ann, 3), (bob, 2)):
            for _ in range(count):
                writers.append((await client.open_connection("127.0.0.1", port))[1])
            with pytest.raises(RefusedError) as busy:
                await client.open_connection("127.0.0.1", port)
            assert busy.value.reason is RejectReason.BUSY
        assert dialer.connections == 5
        for writer in writers:
            await close(writer)
    assert dialer.connections == 0


@in_loop
async def test_two_users_many_dials_of_one_delay_those_of_the_other_by_one_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    begun: list[tuple[int, str]] = []  # the round of the event loop, and the user
    number, refusals = 0, list[RejectReason]()

    async def open_side(self: Dialer, request: ExitRequest, literal: str, port: int) -> Side:
        begun.append((number, request.user))
        raise ConnectionRefusedError

    def request(user: str) -> ExitRequest:
        target = Target(TargetKind.TCP, "127.0.0.1", 1)
        return ExitRequest(target, user, Mock(), lambda reason, text: refusals.append(reason))

    monkeypatch.setattr(Dialer, "_open_side", open_side)
    ruleset = Ruleset([parse_rule("127.0.0.1:*")])
    dialer = Dialer(lambda user: ruleset)
    dials = [asyncio.ensure_future(dialer(request(user))) for user in ["ann"] * 100 + ["bob"]]
    while len(refusals) < len(dials):
        await asyncio.sleep(0)
        number += 1
    assert set(refusals) == {RejectReason.REFUSED}
    assert [user for _, user in begun].index("bob") < 8
    assert max(Counter(round_ for round_, _ in begun).values()) == 4


@in_loop
async def test_a_dial_whose_turn_comes_once_connections_are_not_allowed_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Closing(DialWitness):
        """Allows no connection from the first dial on."""

        why = ""

        def why_closed(self, user: str) -> str:
            return self.why

    async def open_side(self: Dialer, request: ExitRequest, literal: str, port: int) -> Side:
        await asyncio.sleep(0)  # all have asked
        witness.why = "the audit cannot be written"
        raise ConnectionRefusedError

    monkeypatch.setattr(Dialer, "_open_side", open_side)
    witness, ruleset, refusals = Closing(), Ruleset([parse_rule("127.0.0.1:*")]), list[tuple[RejectReason, str]]()
    dialer = Dialer(lambda user: ruleset, witness=witness)
    asked = Target(TargetKind.TCP, "127.0.0.1", 1)
    requests = [ExitRequest(asked, "ann", Mock(), lambda *why: refusals.append(why)) for _ in range(20)]
    await asyncio.gather(*(dialer(request) for request in requests))
    assert Counter(reason for reason, _ in refusals) == {RejectReason.REFUSED: 4, RejectReason.BUSY: 16}
    assert refusals[-1] == (RejectReason.BUSY, witness.why)
    assert dialer.connections == 0


@in_loop
async def test_a_target_that_nothing_uses_because_the_witness_fails_is_closed() -> None:
    class Failing(DialWitness):
        def on_dialled(self, request: ExitRequest, address: str, rule: str) -> None:
            raise ValueError("an event that cannot be written")

    class Keeping(Dialer):
        """Keeps each target, so that no collector of garbage closes it."""

        sides: list[Side]

        async def _open_side(self, request: ExitRequest, literal: str, port: int) -> Side:
            self.sides = [await super()._open_side(request, literal, port)]
            return self.sides[0]

    ended, problems = asyncio.Event(), list[str]()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: problems.append(context["message"]))

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            await reader.read(-1)
        ended.set()

    async with target(wait) as port, tunnel("127.0.0.1:*", witness=Failing(), kind=Keeping) as (client, dialer):
        with pytest.raises(RefusedError) as refused:
            await client.open_connection("127.0.0.1", port)
        assert refused.value.reason is RejectReason.UNREACHABLE
        await ended.wait()
        assert dialer.connections == 0
    assert problems == ["unhandled exception in an exit handler"]


@in_loop
async def test_two_users_one_cannot_take_all_descriptors_of_a_relay_by_its_exit(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 200 descriptors, 150 are for clients of the relay, and 37 for connections of the exit, half of them ann's."""
    monkeypatch.setattr(resource, "getrlimit", lambda _: (200, 200))
    running = relay(settings(exit="inline"))
    async with target(echo) as port, running, attach(f"http://{running.addresses[0]}", **AS_ANN) as ann:
        opened = [(await ann.open_connection("127.0.0.1", port))[1] for _ in range(19)]
        with pytest.raises(RefusedError) as refused:
            await ann.open_connection("127.0.0.1", port)
        assert refused.value.reason is RejectReason.BUSY
        for writer in opened:
            writer.close()


@in_loop
async def test_two_users_slow_names_of_one_do_not_delay_the_names_of_the_other() -> None:
    asked: list[str] = []

    async def answer(host: str, port: int) -> list[IPAddress]:
        asked.append(host)
        if host.startswith("slow"):
            await asyncio.Event().wait()
        return [ip_address("127.0.0.1")]

    options: dict[str, Any] = {"resolve": answer, "dial_seconds": 30}
    async with target(echo) as port, two_clients("*:*", "127.0.0.1:*", **options) as (ann, bob, dialer):
        waiting = [asyncio.ensure_future(ann.open_connection(f"slow{number}.localhost", port)) for number in range(9)]
        await until(lambda: dialer.connections == 9)
        _, writer = await bob.open_connection("quick.localhost", port)
        assert asked == ["slow0.localhost", "slow1.localhost", "quick.localhost"]
        await close(writer)
        for each in waiting:
            each.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)


@in_loop
async def test_an_unreachable_target_is_reported() -> None:
    """The target listens on IPv4 only, so that ::1 does not reach it."""

    async with target(echo) as port, tunnel("[::1]:*") as (client, _):
        with pytest.raises(RefusedError) as refused:
            await client.open_connection("::1", port)
        assert refused.value.reason in (RejectReason.REFUSED, RejectReason.UNREACHABLE)


@in_loop
async def test_stopping_the_exit_resets_its_connections() -> None:
    """Promise 1: a cut is never presented as a clean end of stream."""
    outcome: asyncio.Future[BaseException | bytes] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"the first half")
        try:
            outcome.set_result(await reader.read(-1))
        except ConnectionResetError as error:
            outcome.set_result(error)

    running = relay(settings(exit="inline"))
    async with target(wait) as port, running, attach(f"http://{running.addresses[0]}", **AS_ANN) as ann:
        reader, writer = await ann.open_connection("127.0.0.1", port)
        await reader.readexactly(14)
        await running.close()
        assert isinstance(await outcome, ConnectionResetError)
        with pytest.raises(LostError):
            await reader.read()
        writer.close()


@in_loop
async def test_a_request_whose_accept_fails_leaves_no_connection() -> None:
    ended: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def wait(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            ended.set_result(await reader.read())
        except ConnectionResetError:
            ended.set_result(b"")

    def accept() -> Any:
        raise KeyError("it has given up")

    ruleset = Ruleset([parse_rule("127.0.0.1:*")])
    dialer = Dialer(lambda user: ruleset)
    async with target(wait) as port:
        request = ExitRequest(Target(TargetKind.TCP, "127.0.0.1", port), "ann", accept, lambda reason, text: None)
        with pytest.raises(KeyError):
            await dialer(request)
        assert await ended == b""
        assert dialer.connections == 0


@in_loop
async def test_the_system_resolver_resolves_localhost() -> None:
    assert ip_address("127.0.0.1") in await resolve("localhost", 80)


@in_loop
async def test_the_inline_exit_obeys_the_grants_of_users() -> None:
    async with target(echo) as port:
        grant = Grant(connect=(parse_rule(f"127.0.0.1:{port}"),))
        config = settings(exit="inline", grants=GrantTable({"ann": grant}))
        async with relay(config) as running:
            url = f"http://{running.addresses[0]}"
            async with attach(url, token=TOKENS["ann"], proxy=None, carrier="poll") as ann:
                reader, writer = await ann.open_connection("127.0.0.1", port)
                assert await say(reader, writer, b"hello") == b"hello"
                await close(writer)
                with pytest.raises(DeniedError):
                    await ann.open_connection("127.0.0.1", port + 1)
            async with attach(url, token=TOKENS["bob"], proxy=None, carrier="poll") as bob:
                with pytest.raises(DeniedError):
                    await bob.open_connection("127.0.0.1", port)


@in_loop
async def test_a_separate_exit_dials_over_http() -> None:
    ruleset = Ruleset([parse_rule("127.0.0.1:*")])
    async with target(echo) as port, relay() as running:
        url = f"http://{running.addresses[0]}"
        async with (
            attach(url, token=TOKENS["exits"], proxy=None, exit_handler=Dialer(lambda user: ruleset)),
            attach(url, token=TOKENS["ann"], proxy=None) as ann,
        ):
            reader, writer = await ann.open_connection("127.0.0.1", port)
            assert await say(reader, writer, b"hello") == b"hello"
            await close(writer)


async def say(reader: StreamReader, writer: StreamWriter, words: bytes) -> bytes:
    writer.write(words)
    return await reader.readexactly(len(words))


@in_loop
async def test_two_users_one_who_downloads_is_charged_for_large_buffers_of_the_kernel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    users = users_who_ask(monkeypatch, "tunnel_servlet.exit.dialer")
    async with target(echo) as port, two_clients("127.0.0.1:*") as (ann, bob, _):
        for user, size_bytes in ((ann, 1 << 18), (bob, 1 << 17)):
            reader, writer = await user.open_connection("127.0.0.1", port)
            writer.write(bytes(size_bytes))
            assert len(await reader.readexactly(size_bytes)) == size_bytes
            await close(writer)
    assert users == ["ann"]
