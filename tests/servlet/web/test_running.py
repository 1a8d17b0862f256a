"""A relay process: reloading, draining, stopping, and the admin listener."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
import uvloop
from msgspec import structs
from structlog.testing import capture_logs

from tests.servlet.rig import KEYS, Client, exchange_body, relay, settings, until
from tests.servlet.support import accepted, connect, control, data, kinds, of_kind, read_rejected
from tests.servlet.web.rig import SECRET, admin, ask, linked
from tests.support.logs import limited_logs
from tests.support.loops import HANGING_S, in_loop, in_loop_within
from tunnel.process.event_loops import new_event_loop
from tunnel.system.clock import now_us
from tunnel.traces.jsonl import read_trace
from tunnel.traces.record import TraceEvent
from tunnel.wire import Attached, Option, Options, PacketType, RejectReason, StatusCode, decode_option, parse_packets
from tunnel_servlet.access.grants import GrantTable
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.command.files import write_users
from tunnel_servlet.command.main import main
from tunnel_servlet.config import ConfigError, ListenAddress, RelayConfig
from tunnel_servlet.web.drain_outcome import DrainOutcome, DrainWatch
from tunnel_servlet.web.running import serve

NEVER_S = 1e9  # if a relay waits this long, the test fails at its deadline


@in_loop
async def test_reloading_applies_new_tokens_and_rules() -> None:
    config = settings()
    current = [config]
    running = relay(config, load=lambda: current[0])
    async with running, Client(running, "ann") as ann, Client(running, "bob") as bob:
        await ann.attach()
        current[0] = replace(config, tokens=TokenTable({"bob": KEYS["bob"]}), grants=GrantTable())
        running.reload()
        reply = await ann.post(exchange_body(ann.epoch, 1))
        assert (reply.status, reply.message.code) == (401, StatusCode.NOT_AUTHORISED)
        assert isinstance(await bob.attach(seed=2), Attached)
        reply = await bob.post(exchange_body(bob.epoch, 1, connect(11), seed=2))
        assert read_rejected(parse_packets(reply.message.data)[0][0]).reason == RejectReason.DENIED


@in_loop
async def test_a_held_request_with_a_revoked_token_gets_no_packets() -> None:
    config = settings()
    async with relay(config) as running, Client(running, "ann") as ann:
        await ann.attach()
        pull = await ann.parked(exchange_body(ann.epoch, 1, pull=True))
        running.relay.reload(replace(config, tokens=TokenTable({"bob": KEYS["bob"]})))
        running.relay.host.switch.handle_timeout(1 << 62)
        running.relay.host.pump()
        reply = await pull
        assert (reply.status, reply.message.code) == (401, StatusCode.NOT_AUTHORISED)


@in_loop
async def test_a_file_with_an_error_changes_nothing() -> None:
    def fail() -> RelayConfig:
        raise ConfigError("relay.toml: lisen: unknown key")

    async with relay(load=fail) as running, Client(running) as client:
        with capture_logs() as logs:
            running.reload()
        assert [(entry["event"], entry["text"]) for entry in logs] == [
            ("not_reloaded", "relay.toml: lisen: unknown key")
        ]
        assert isinstance(await client.attach(), Attached)


@in_loop
async def test_without_files_there_is_nothing_to_reload() -> None:
    async with relay() as running, Client(running) as client:
        running.reload()
        assert isinstance(await client.attach(), Attached)


@in_loop
async def test_an_open_relay_has_no_tokens_to_revoke() -> None:
    config = settings(is_open=True)
    async with relay(config, load=lambda: config) as running, Client(running) as client:
        running.reload()
        assert isinstance(await client.attach(), Attached)


async def route(ann: Client, exit_: Client) -> None:
    await ann.attach()
    await exit_.attach(seed=2)
    await ann.post(exchange_body(ann.epoch, 1, connect(11)))
    reply = await exit_.post(exchange_body(exit_.epoch, 1, seed=2))
    assert kinds(parse_packets(reply.message.data)[0]) == ["CONNECT"]
    await exit_.post(exchange_body(exit_.epoch, 2, accepted(11, 22), seed=2, serial_received=1))


@in_loop
async def test_draining_refuses_openings_and_waits_for_open_connections() -> None:
    async with relay(admin()) as running, Client(running) as ann, Client(running, "exits") as exit_:
        await route(ann, exit_)
        assert await ask(running, "/readyz") == (200, "ready\n")
        running.terminate()
        assert await ask(running, "/readyz") == (503, "draining\n")
        assert (await ask(running, "/livez"))[0] == 200
        reply = await ann.post(exchange_body(ann.epoch, 2, connect(12), serial_received=1))
        (rejected,) = of_kind(parse_packets(reply.message.data)[0], PacketType.REJECTED)
        assert read_rejected(rejected).reason == RejectReason.SHUTTING_DOWN
        (notice,) = of_kind(parse_packets(reply.message.data)[0], PacketType.OPTION)
        assert decode_option(notice.payload) == Option(0, Options(draining=True))
        assert not running.stopped.is_set()
        await ann.post(exchange_body(ann.epoch, 3, control(PacketType.SHUTDOWN, 11, 22)))
        await exit_.post(exchange_body(exit_.epoch, 3, control(PacketType.SHUTDOWN, 22, 11), seed=2))
        await running.stopped.wait()


@in_loop
async def test_draining_waits_until_the_other_end_knows_of_a_reset_and_no_longer() -> None:
    async with relay(admin()) as running, Client(running) as ann, Client(running, "exits") as exit_:
        await route(ann, exit_)
        waiting = asyncio.ensure_future(ask(running, f"/drain?wait=1&timeout={round(NEVER_S)}", "POST"))
        await until(lambda: running.relay.is_draining)
        await exit_.post(exchange_body(exit_.epoch, 3, control(PacketType.ABORT, 22, 11, bytes(4)), seed=2))
        assert not running.stopped.is_set()
        reply = await ann.post(exchange_body(ann.epoch, 2, serial_received=1))
        assert of_kind(parse_packets(reply.message.data)[0], PacketType.ABORT)
        status, text = await waiting
        assert (status, msgspec.json.decode(text)) == (200, {"moved": 0, "ended": 1, "cut": 0})


@in_loop
async def test_draining_waits_until_both_ends_know_of_a_kick() -> None:
    async with relay() as running, Client(running) as ann, Client(running, "exits") as exit_:
        await route(ann, exit_)
        running.drain(NEVER_S)
        host = running.relay.host
        host.switch.operator.kick_connection(host.switch.operator.connections()[0], now_us())
        host.let_serve()
        for end, seed in ((ann, 1), (exit_, 2)):
            await asyncio.sleep(0.01)  # many turns of the loop
            assert not running.stopped.is_set()
            reply = await end.post(exchange_body(end.epoch, 1 + seed, seed=seed, serial_received=1))
            assert of_kind(parse_packets(reply.message.data)[0], PacketType.ABORT)
        await running.stopped.wait()


@in_loop
async def test_draining_waits_until_a_reset_has_left_on_links_and_has_receipts() -> None:
    """What was written to a link may wait in this process for a slow path, and the end of the relay discards it."""
    async with (
        relay() as running,
        Client(running) as ann,
        Client(running, "exits") as exit_,
        linked(running, ann) as up,
        linked(running, exit_, "exits", 2) as down,
    ):
        up.send(connect(11))
        assert kinds(await down.packets()) == ["CONNECT"]
        down.send(accepted(11, 22))
        assert kinds(await up.packets()) == ["ACCEPTED"]
        running.drain(NEVER_S)
        host = running.relay.host
        host.switch.operator.kick_connection(host.switch.operator.connections()[0], now_us())
        host.let_serve()
        for link in (up, down):
            while "ABORT" not in kinds(await link.packets()):
                pass
            await asyncio.sleep(0.01)  # many turns of the loop
            assert not running.stopped.is_set()
            link.send_receipt()
        await running.stopped.wait()


@in_loop
async def test_after_sigterm_the_relay_waits_until_the_other_end_knows_of_a_reset(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tunnel_servlet.web.running.STILL_S", NEVER_S)
    monkeypatch.setattr("tunnel.process.stillness._LOOK_S", 0.001)
    async with relay() as running, Client(running) as ann, Client(running, "exits") as exit_:
        await route(ann, exit_)
        running.terminate()
        await exit_.post(exchange_body(exit_.epoch, 3, control(PacketType.ABORT, 22, 11, bytes(4)), seed=2))
        await asyncio.sleep(0.05)  # many looks
        assert not running.stopped.is_set()
        reply = await ann.post(exchange_body(ann.epoch, 2, serial_received=1))
        assert of_kind(parse_packets(reply.message.data)[0], PacketType.ABORT)
        await running.stopped.wait()


@in_loop
async def test_draining_ends_at_its_deadline() -> None:
    running = relay(settings(limits={"drain_seconds": 0.01}))
    with capture_logs() as logs:
        async with running, Client(running) as ann, Client(running, "exits") as exit_:
            await route(ann, exit_)
            running.drain()
            await running.stopped.wait()
    assert [entry["routes"] for entry in logs if entry["event"] == "drain_timeout"] == [1]


def test_sigterm_does_not_wait_for_connections_that_stand_still(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_servlet.web.running.STILL_S", 0.05)

    @in_loop
    async def scenario() -> None:
        running = relay()
        with capture_logs() as logs:
            async with running, Client(running) as ann, Client(running, "exits") as exit_:
                await route(ann, exit_)
                running.terminate()
                await running.stopped.wait()
        texts = {entry["event"]: entry.get("text", "") for entry in logs}
        assert texts["stopping"] == (
            "waiting for 1 open connection until no byte has moved for 0.05 s, 60 s at most; a second SIGTERM cuts them"
        )
        assert "moved no byte" in texts["cut"]

    scenario()


def test_sigterm_waits_for_connections_that_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_servlet.web.running.STILL_S", NEVER_S)

    @in_loop
    async def scenario() -> None:
        running = relay()
        async with running, Client(running) as ann, Client(running, "exits") as exit_:
            await route(ann, exit_)
            running.terminate()
            before = running.relay.host.switch.stats().counters.packets_streamed
            await ann.post(exchange_body(ann.epoch, 2, data(11, 22, 1), serial_received=1))
            assert running.relay.host.switch.stats().counters.packets_streamed == before + 1
            assert not running.stopped.is_set()

    scenario()


@in_loop_within(HANGING_S)
async def test_without_connections_draining_stops_the_relay_at_once() -> None:
    with capture_logs() as logs:
        async with relay(settings(limits={"drain_seconds": NEVER_S})) as running:
            running.drain()
            running.drain()
            await running.stopped.wait()
    assert [entry["event"] for entry in logs if entry["event"] in ("drained", "cut", "drain_timeout")] == ["drained"]


def test_a_second_sigterm_stops_the_relay_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_servlet.web.running.STILL_S", NEVER_S)

    @in_loop_within(HANGING_S)
    async def scenario() -> None:
        running = relay(settings(limits={"drain_seconds": NEVER_S}))
        async with running, Client(running) as ann, Client(running, "exits") as exit_:
            await route(ann, exit_)
            running.terminate()
            await ann.post(exchange_body(ann.epoch, 2, serial_received=1))
            assert not running.stopped.is_set()
            running.terminate()
            assert running.stopped.is_set()

    scenario()


@pytest.mark.parametrize("is_cut_by_signal", [True, False])
@in_loop
async def test_a_drain_says_how_many_connections_were_cut(*, is_cut_by_signal: bool) -> None:
    async with relay(admin()) as running, Client(running) as ann, Client(running, "exits") as exit_:
        await route(ann, exit_)
        assert (await ask(running, "/drain?wait=1", "POST", Tunnel_Admin=""))[0] == 403
        seconds = round(NEVER_S) if is_cut_by_signal else 1
        waiting = asyncio.ensure_future(ask(running, f"/drain?wait=1&timeout={seconds}", "POST"))
        await until(lambda: running.relay.is_draining)
        if is_cut_by_signal:
            running.terminate()
        status, text = await waiting
        assert (status, msgspec.json.decode(text)) == (200, {"moved": 0, "ended": 0, "cut": 1})
        assert running.stopped.is_set()


@pytest.mark.parametrize("has_connection", [True, False])
@in_loop
async def test_the_command_says_what_became_of_the_connections(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], *, has_connection: bool
) -> None:
    file = tmp_path / "relay.toml"
    file.write_text('listen = ["127.0.0.1:0"]\nadmin = "127.0.0.1:0"\ntokens = "keys.toml"\n')
    write_users(tmp_path / "keys.toml", {"ann": KEYS["ann"]}, SECRET)
    async with relay(admin()) as running, Client(running) as ann, Client(running, "exits") as exit_:
        if has_connection:
            await route(ann, exit_)
        words = ["drain", "--timeout", "1", "--json", "--admin", str(running.admin), "-c", str(file)]
        ordered = asyncio.ensure_future(asyncio.to_thread(main, words))
        await running.stopped.wait()
    assert await ordered == (6 if has_connection else 0)
    said, cut = capsys.readouterr(), int(has_connection)
    assert f"0 connections moved to another relay, 0 ended, {cut} {'was' if cut else 'were'} cut" in said.err
    shown = next(line for line in said.out.splitlines() if line.startswith('{"stopped"'))
    assert msgspec.json.decode(shown) == {"stopped": True, "moved": 0, "ended": 0, "cut": cut}


@in_loop
async def test_connections_that_moved_or_ended_while_a_relay_drained_are_counted_apart() -> None:
    async with relay() as running:
        now = running.relay.host.switch.stats()
        watch = DrainWatch()
        now.counters.routes_moved = 4
        watch.begin(structs.replace(now, routes=9))
        now.counters.routes_moved = 8
        assert watch.end(structs.replace(now, routes=2)) == DrainOutcome(moved=4, ended=3, cut=2)
        assert await watch.outcome() == DrainOutcome(moved=4, ended=3, cut=2)


@in_loop
async def test_the_admin_listener_shows_the_state_without_names() -> None:
    async with relay(admin()) as running, Client(running) as client:
        await client.attach()
        status, text = await ask(running, "/state")
        state = msgspec.json.decode(text)
        assert status == 200
        assert (state["ready"], state["draining"], state["tokens"]) == (True, False, 3)
        assert (state["switch"]["attachments"], state["switch"]["counters"]["attaches_fresh"]) == (1, 1)
        assert "ann" not in text
        assert (await ask(running, "/other"))[0] == 404


@in_loop
async def test_the_admin_listener_drains_on_request() -> None:
    async with relay(admin()) as running, Client(running) as ann, Client(running, "exits") as exit_:
        await route(ann, exit_)
        assert (await ask(running, "/drain", "POST", Tunnel_Admin=""))[0] == 403
        assert (await ask(running, "/drain?timeout=soon", "POST"))[0] == 400
        assert not running.relay.is_draining
        assert (await ask(running, "/drain?timeout=0", "POST"))[0] == 202
        await running.stopped.wait()


@in_loop
async def test_a_relay_that_is_not_ready_says_so() -> None:
    async with relay(admin()) as running:
        running.relay.is_ready = False
        assert await ask(running, "/readyz") == (503, "not ready\n")


@in_loop
async def test_listening_beyond_this_machine_without_tls_is_warned_about() -> None:
    with capture_logs() as logs:
        async with relay(settings(listen=(ListenAddress("0.0.0.0", 0),))):
            pass
    assert [entry["event"] for entry in logs] == ["listening", "no_tls"]


@in_loop
async def test_a_trace_is_written(tmp_path: Path) -> None:
    async with relay(settings(trace=str(tmp_path / "a" / "b"))) as running, Client(running) as client:
        await client.attach()
    (file,) = (tmp_path / "a" / "b").iterdir()
    assert file.name.startswith(f"relay-{os.getpid()}-")
    records = read_trace(file)
    assert "ann" in [record.text for record in records if record.node == running.config.switch.node]


@in_loop
async def test_a_late_event_loop_of_the_relay_is_in_its_trace(tmp_path: Path) -> None:
    async with relay(settings(trace=str(tmp_path))):
        time.sleep(0.25)  # noqa: ASYNC251 - a busy process; a sample of the loop is due every 0.1 s
        await asyncio.sleep(0.01)
    (file,) = tmp_path.iterdir()  # noqa: ASYNC240 - the loop has nothing else to do
    (late,) = (record for record in read_trace(file) if record.event == TraceEvent.LOOP_LAG)
    assert late.node == "relay"
    assert late.latency_us >= 100_000


@in_loop
async def test_a_trace_that_cannot_be_written_is_explained(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("")
    with pytest.raises(ConfigError, match="name a directory that can be written"):
        relay(settings(trace=str(tmp_path / "a")))


def test_uvloop_is_used_where_it_is_installed() -> None:
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, uvloop.Loop)


def test_asyncio_is_used_where_uvloop_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "uvloop", None)
    loop = new_event_loop()
    loop.close()
    assert isinstance(loop, asyncio.SelectorEventLoop)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
@in_loop
async def test_a_relay_reloads_its_files_and_serves_until_a_signal(number: signal.Signals, code: int) -> None:
    loads: list[int] = []
    config = settings()

    def load() -> RelayConfig:
        loads.append(1)
        return config

    serving = asyncio.ensure_future(serve(config, load, []))
    await until(lambda: signal.getsignal(signal.SIGHUP) != signal.SIG_DFL)
    os.kill(os.getpid(), signal.SIGHUP)
    await until(lambda: loads)
    os.kill(os.getpid(), number)
    assert await serving == code
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_DFL


@in_loop
async def test_two_users_a_flood_of_requests_does_not_fill_the_log() -> None:
    with limited_logs() as logs:
        async with relay() as running, Client(running, "bob") as flood, Client(running) as victim:
            await flood.attach(1)
            await victim.attach(2)
            packets = [connect(each) for each in range(1, 301)]
            assert (await flood.post(exchange_body(flood.epoch, 1, *packets))).status == 200
            await victim.post(exchange_body(victim.epoch, 1, connect(7), seed=2))
            assert running.relay.host.switch.stats().counters.connects == 301
    lines = [line["user"] for line in logs if line["event"] == "connect"]
    assert lines.count("bob") < 300
    assert lines.count("ann") == 1


@in_loop
async def test_the_metrics_page_has_those_of_the_trace_only_with_a_trace(tmp_path: Path) -> None:
    async with relay(admin(trace=str(tmp_path / "traces"))) as running:
        assert "\ntunnel_trace_records_dropped_total 0.0\n" in (await ask(running, "/metrics"))[1]
    async with relay(admin()) as running:
        assert "tunnel_trace" not in (await ask(running, "/metrics"))[1]
