"""Encrypted streams through the real switch, over exchanges and over a link: services, exits, modes and keys."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.carriers.harness import MIB, Counting, ask, echo, end, noise, say_and_hear
from tests.encryption.rig import another_key, key, key_file
from tests.support.http_relay import HttpTestRelay, LinkTestRelay
from tests.support.loops import in_loop, run
from tests.support.relays import inside
from tunnel import Attachment, ExitRequest, PeerKeyError, RefusedError, StreamReader, StreamWriter
from tunnel.encryption.known_peers import EXIT, KnownPeers
from tunnel.encryption.turns import HANDSHAKES_PER_USER_MAX
from tunnel.wire import Frame, PacketType, decode_connect

RELAYS = {"poll": HttpTestRelay, "link": LinkTestRelay}
carriers = pytest.mark.parametrize("carrier", RELAYS)


@asynccontextmanager
async def meeting(relay: HttpTestRelay, **options: Any) -> AsyncIterator[tuple[HttpTestRelay, Attachment, Attachment]]:
    """Attach a user whose services have a key, and another one with these options."""
    async with relay, relay.attach("ann", key=key_file()) as service, relay.attach("bob", **options) as client:
        yield relay, service, client


async def dial(request: ExitRequest) -> None:
    """Answer as an exit whose targets all echo; those at port 22 greet first."""
    reader, writer = request.accept_streams()
    if request.target.port == 22:
        writer.write(b"SSH-2.0-x\r\n")
    await echo(reader, writer)


@carriers
def test_a_stream_to_a_service_and_to_an_exit_is_encrypted(carrier: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        seen = bytearray()

        def keep(frame: Frame) -> bool:
            seen.extend(frame.data)
            return True

        known = tmp_path / "known_peers"
        async with (
            RELAYS[carrier](packet_filter=keep) as relay,
            relay.attach("exit", exit_handler=dial, key=key_file()),
            relay.attach("ann", key=key_file()) as service,
            relay.attach("bob", known_peers=known) as client,
        ):
            await service.start_server(echo, "echo")
            for target in (("echo",), ("db", 5432)):
                reader, writer = await client.open_connection(*target)
                assert writer.get_extra_info("peer_key") == key().fingerprint
                assert not writer.get_extra_info("peer_key_verified")
                await ask(reader, writer, b"account 100" * 50)
                data = noise(3 * MIB)
                await asyncio.gather(ask_much(reader, writer, data))
                await writer.flush()
                writer.write_eof()
                assert await reader.read() == b""
                await end(writer)
            assert [(one.peer, one.keys) for one in KnownPeers(known).entries()] == [
                ("service:echo", (key().fingerprint,)),
                (EXIT, (key().fingerprint,)),
            ]
            _, writer = await client.open_connection("db", 5433)
            assert writer.get_extra_info("peer_key_verified")
            await end(writer)
            assert len(seen) > 12 * MIB
            assert b"account" not in seen

    run(scenario())


async def ask_much(reader: StreamReader, writer: StreamWriter, data: bytes) -> None:
    async def send() -> None:
        writer.write(data)
        await writer.drain()

    _, found = await asyncio.gather(send(), reader.readexactly(len(data)))
    assert found == data


@carriers
def test_a_target_that_speaks_first_is_heard(carrier: str) -> None:
    async def scenario() -> None:
        async with (
            RELAYS[carrier]() as relay,
            relay.attach("exit", exit_handler=dial, key=key_file()),
            relay.attach("bob", peer_key=key().fingerprint) as client,
        ):
            reader, writer = await client.open_connection("host", 22)
            assert await reader.readline() == b"SSH-2.0-x\r\n"
            assert writer.get_extra_info("peer_key_verified")
            await end(writer)

    run(scenario())


@carriers
def test_a_stream_survives_the_restart_of_the_relay(carrier: str) -> None:
    async def scenario() -> None:
        async with meeting(RELAYS[carrier](), peer_key=key().fingerprint) as (relay, service, client):
            await service.start_server(echo, "echo")
            reader, writer = await say_and_hear(client)
            data = noise(2 * MIB)
            asking = asyncio.ensure_future(ask_much(reader, writer, data))
            await asyncio.sleep(0)
            relay.restart()
            await asking
            relay.restart()
            await ask(reader, writer, b"still there")
            await end(writer)

    run(scenario())


@in_loop
async def test_a_stream_survives_links_that_are_killed_and_migrations_to_poll_and_back() -> None:
    async with meeting(LinkTestRelay(), peer_key=key().fingerprint) as (relay, service, client):
        await service.start_server(echo, "echo")
        reader, writer = await say_and_hear(client)
        assert client.stats().carrier.startswith("link")
        data = noise(MIB)
        for number in range(4):
            asking = asyncio.ensure_future(ask_much(reader, writer, data))
            await asyncio.sleep(0)
            relay.refuse_links = number % 2 == 0
            for link in list(relay.host.links.values()):
                link.end("killed")
            await asking
        await end(writer)


@carriers
def test_a_restart_within_the_handshake_costs_time_only(carrier: str) -> None:
    async def scenario() -> None:
        lost = [PacketType.ACCEPTED, PacketType.DATA]
        relay: HttpTestRelay

        def lose(frame: Frame) -> bool:
            if lost and frame.type == lost[0]:
                lost.pop(0)
                asyncio.get_running_loop().call_soon(relay.restart)
                return False
            return True

        async with meeting(RELAYS[carrier](packet_filter=lose), peer_key=key().fingerprint) as (relay, service, client):
            await service.start_server(echo, "echo")
            _, writer = await say_and_hear(client)
            assert not lost
            await end(writer)

    run(scenario())


@in_loop
async def test_the_modes_of_both_sides_decide_what_is_encrypted_or_refused() -> None:
    async with LinkTestRelay() as relay:
        clear: list[dict[str, Any]] = [
            {"encryption": "off"},
            {"encryption": "auto"},
            {"encryption": "off", "key": key_file()},
        ]
        for index, options in enumerate([*clear, {"key": key_file()}, {"encryption": "require", "key": key_file()}]):
            async with relay.attach("ann", **options) as service:
                await service.start_server(echo, f"s{index}")
                for mode in ("off", "auto", "require"):
                    wanted = "" if mode == "off" or options in clear else key().fingerprint
                    is_refused = (mode == "off" and index == 4) or (mode == "require" and options in clear)
                    async with relay.attach("bob", encryption=mode) as client:
                        if is_refused:
                            with pytest.raises((PeerKeyError, RefusedError, PermissionError)):
                                await client.open_connection(f"s{index}")
                            continue
                        _, writer = await say_and_hear(client, f"s{index}")
                        assert (writer.get_extra_info("peer_key") or "") == wanted
                        await end(writer)


@in_loop
async def test_another_key_is_an_error_before_any_byte(tmp_path: Path) -> None:
    known = KnownPeers(tmp_path / "known_peers")
    async with (
        LinkTestRelay() as relay,
        relay.attach("ann", key=another_key().path) as service,
        relay.attach("bob", known_peers=known.path) as client,
        relay.attach("bob", peer_key=[key().fingerprint]) as pinned,
    ):
        known.remember(relay.url, "service:echo", key().fingerprint)
        await service.start_server(echo, "echo")
        with pytest.raises(PeerKeyError, match=r"known_peers, line 1,") as caught:
            await client.open_connection("echo")
        assert caught.value.exit_code == 4
        assert relay.url in str(caught.value)
        with pytest.raises(PeerKeyError, match="configured peer key"):
            await pinned.open_connection("echo")
        known.trust(relay.url, "service:echo", another_key().fingerprint)
        _, writer = await client.open_connection("echo")
        assert writer.get_extra_info("peer_key_verified")
        await end(writer)


@in_loop
async def test_endpoints_of_one_service_need_one_key_or_must_all_be_listed(tmp_path: Path) -> None:
    """Two endpoints offer one service; the relay gives connections to them in turn."""
    known = KnownPeers(tmp_path / "known_peers")
    async with (
        LinkTestRelay() as relay,
        relay.attach("ann", key=key_file()) as one,
        relay.attach("ann", key=another_key().path) as other,
        relay.attach("bob", known_peers=known.path) as client,
    ):
        for member in (one, other):
            await member.start_server(echo, "echo")
        found: list[object] = []
        for _ in range(4):  # on first use, one of the two is trusted
            try:
                _, writer = await client.open_connection("echo")
            except PeerKeyError as error:
                found.append(type(error))
            else:
                found.append(writer.get_extra_info("peer_key"))
                await end(writer)
        assert found.count(PeerKeyError) == 2
        assert len(set(found)) == 2
        known.forget(relay.url, "service:echo")
        for each in (key(), another_key()):
            known.trust(relay.url, "service:echo", each.fingerprint)
        keys = set()
        for _ in range(4):
            _, writer = await client.open_connection("echo")
            assert writer.get_extra_info("peer_key_verified")
            keys.add(writer.get_extra_info("peer_key"))
            await end(writer)
        assert keys == {key().fingerprint, another_key().fingerprint}


@in_loop
async def test_connections_that_meet_a_new_peer_at_once_all_get_its_key(tmp_path: Path) -> None:
    known = KnownPeers(tmp_path / "known_peers")
    async with (
        LinkTestRelay() as relay,
        relay.attach("ann", key=key_file()) as service,
        relay.attach("bob", known_peers=known.path) as client,
        relay.attach("bob", known_peers=known.path) as another,
    ):
        await service.start_server(echo, "echo")
        opening = [each.open_connection("echo") for each in (client, another) for _ in range(10)]
        for _, writer in await asyncio.gather(*opening):
            assert writer.get_extra_info("peer_key") == key().fingerprint
            await end(writer)
        assert known.path.read_text() == f"{relay.url} service:echo {key().fingerprint}\n"


@in_loop
async def test_once_a_key_is_known_nothing_falls_back_to_clear(tmp_path: Path) -> None:
    known = KnownPeers(tmp_path / "known_peers")
    heard: list[bytes] = []

    async def listen(reader: StreamReader, writer: StreamWriter) -> None:
        heard.append(await reader.read())

    async with LinkTestRelay() as relay, relay.attach("bob", known_peers=known.path) as client:
        known.remember(relay.url, "service:echo", key().fingerprint)
        async with relay.attach("ann") as service:
            await service.start_server(listen, "echo")
            with pytest.raises(PeerKeyError, match="would not be encrypted"):
                await client.open_connection("echo")
        assert b"".join(heard) == b""


@in_loop
async def test_a_key_that_is_required_must_be_there() -> None:
    async with LinkTestRelay() as relay, relay.attach("ann", encryption="require") as service:
        with pytest.raises(ValueError, match="has no key to be served with"):
            await service.start_server(echo, "echo")


@in_loop
async def test_unfinished_handshakes_are_limited_by_user_and_given_back() -> None:
    async with (
        LinkTestRelay() as relay,
        relay.attach("ann", key=key_file()) as service,
        relay.attach("bob", encryption="require") as client,
        relay.attach("ann", encryption="require") as other,
    ):
        await service.start_server(echo, "echo")
        turns = inside(service)._encryption._turns
        slots = [turns.enter(b"", "bob") for _ in range(HANDSHAKES_PER_USER_MAX)]
        with pytest.raises(RefusedError, match="too many TLS handshakes"):
            await client.open_connection("echo")
        _, writer = await say_and_hear(other)  # the limit of bob does not concern ann
        await end(writer)
        for slot in slots:
            assert slot is not None
            slot.leave()
            slot.leave()
        _, writer = await say_and_hear(client)
        await end(writer)
        assert turns._counts == {}


@in_loop
async def test_a_handshake_that_never_ends_is_given_up_on_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.encryption.transport.HANDSHAKE_S", 0.2)
    is_silent = True
    async with meeting(
        LinkTestRelay(packet_filter=lambda frame: not is_silent or frame.type != PacketType.DATA), encryption="require"
    ) as (_, service, client):
        await service.start_server(echo, "echo")
        with pytest.raises(ConnectionError, match="TLS handshake did not end"):
            await client.open_connection("echo")
        await inside(service)._empty.wait()
        assert inside(service)._encryption._turns._counts == {}
        is_silent = False
        _, writer = await client.open_connection("echo")
        await end(writer)


@in_loop
async def test_a_client_that_sends_and_closes_at_once_has_delivered() -> None:
    heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

    async def listen(reader: StreamReader, writer: StreamWriter) -> None:
        heard.set_result(await reader.read())
        writer.close()
        await writer.wait_closed()

    async with meeting(LinkTestRelay(), encryption="require") as (_, service, client):
        await service.start_server(listen, "sink")
        _, writer = await client.open_connection("sink")
        writer.write(b"report")
        await end(writer)
        assert await heard == b"report"


@in_loop
async def test_a_paused_protocol_and_write_limits_work_as_in_clear() -> None:
    async with meeting(LinkTestRelay(), encryption="require") as (_, service, client):
        await service.start_server(echo, "echo")
        transport, protocol = await client.create_connection(Counting, "echo")
        transport.pause_reading()
        transport.write(noise(MIB))
        transport.write_eof()
        assert protocol.size == 0
        transport.resume_reading()
        assert await protocol.lost is None
        assert protocol.size == MIB


@in_loop
async def test_a_service_may_end_first_and_its_server_may_close() -> None:
    async def greet(reader: StreamReader, writer: StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    async with meeting(LinkTestRelay(), encryption="require") as (_, service, client):
        server = await service.start_server(greet, "greet")
        reader, writer = await client.open_connection("greet")
        assert await reader.read() == b"bye"
        await end(writer)
        server.close()
        await server.wait_closed()
        with pytest.raises(RefusedError):
            await client.open_connection("greet")


@carriers
@pytest.mark.parametrize(("port", "added"), [(5432, 0), (22, 2)], ids=["the client", "the target"])
def test_encryption_adds_a_round_trip_only_if_the_target_speaks_first(port: int, added: int, carrier: str) -> None:
    """When the target speaks first, its greeting waits for the binding."""

    async def turns(mode: str) -> int:
        directions: list[bool] = []  # one entry for each change of direction: whether packets go to the acceptor
        initiators: list[int] = []

        def note(frame: Frame) -> bool:
            if frame.type == PacketType.CONNECT:
                initiators.append(frame.source)
            if frame.type in (PacketType.CONNECT, PacketType.ACCEPTED, PacketType.DATA):
                is_up = frame.type != PacketType.ACCEPTED and frame.source in initiators
                if directions[-1:] != [is_up]:
                    directions.append(is_up)
            return True

        async with (
            RELAYS[carrier](packet_filter=note) as relay,
            relay.attach("exit", exit_handler=dial, key=key_file()),
            relay.attach("bob", encryption=mode) as client,
        ):
            reader, writer = await client.open_connection("db", port)
            if port == 22:
                assert await reader.readline() == b"SSH-2.0-x\r\n"
            else:
                await ask(reader, writer, b"question")
            count = len(directions)
            await end(writer)
            return count

    async def scenario() -> None:
        assert await turns("require") - await turns("off") == added

    run(scenario())


@in_loop
async def test_flush_waits_for_everything_that_was_written() -> None:
    async with meeting(LinkTestRelay(), encryption="require") as (_, service, client):
        heard: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        async def listen(reader: StreamReader, writer: StreamWriter) -> None:
            heard.set_result(await reader.readexactly(6 * MIB))
            writer.close()

        await service.start_server(listen, "sink")
        _, writer = await client.open_connection("sink")
        writer.write(noise(6 * MIB))
        assert writer.transport.get_write_buffer_size()
        await writer.flush()
        (stats,) = client.stats().connections.values()
        assert (stats.bytes_written, stats.bytes_acknowledged) == (6 * MIB, 6 * MIB)  # the bytes of TLS do not count
        assert len(await heard) == 6 * MIB
        assert [one.bytes_delivered for one in service.stats().connections.values()] == [6 * MIB]
        await end(writer)


@in_loop
async def test_a_relay_that_does_not_know_the_option_forwards_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The relay decodes CONNECT to add the user, and must keep the kinds of options that it does not know."""
    import tunnel_servlet.switch.routes.openings as openings
    from tunnel.wire import options

    older = {kind: row for kind, row in options._KINDS.items() if kind != 8}

    def as_older(data: object) -> object:
        with monkeypatch.context() as patch:
            patch.setattr(options, "_KINDS", older)
            connect = decode_connect(data)  # type: ignore[arg-type]
        assert connect is None or connect.options.encryption is None
        return connect

    monkeypatch.setattr(openings, "decode_connect", as_older)
    async with meeting(LinkTestRelay(), encryption="require") as (_, service, client):
        await service.start_server(echo, "echo")
        _, writer = await say_and_hear(client)
        assert writer.get_extra_info("peer_key") == key().fingerprint
        await end(writer)
