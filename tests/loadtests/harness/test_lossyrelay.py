"""The lossy relay: a tunnel through it loses nothing, and its loss changes while it runs."""

import asyncio
import json
from random import Random

import pytest
import xxhash

from loadtests.harness import lossyrelay
from loadtests.harness.losses import Bernoulli, LossyFilter
from loadtests.harness.lossyrelay import Control, ask_loss
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.stress.target import serve
from tests.support.loops import in_loop
from tunnel import attach
from tunnel_servlet.command.files import Overrides, load_config
from tunnel_servlet.web.running import RunningRelay


def test_the_control_changes_and_reports_the_loss() -> None:
    lossy = LossyFilter(Bernoulli(0), 1)
    control = Control(lossy)
    assert json.loads(control.answer("")) == {"share": 0, "passed": 0, "lost": 0}
    assert json.loads(control.answer("0.25"))["share"] == 0.25
    assert "is not a loss" in json.loads(control.answer("much"))["error"]
    assert lossy.model == Bernoulli(0.25)


@pytest.mark.parametrize("arguments", [["--loss", "much"], ["--allow", "nonsense:x:y"]])
def test_wrong_arguments_are_explained(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert lossyrelay.main(["--open", "--listen", "127.0.0.1:0", *arguments]) == 2
    assert capsys.readouterr().err.startswith("lossyrelay: ")


@in_loop
async def test_every_byte_arrives_through_a_relay_that_loses() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
        writer.close()
        await writer.wait_closed()

    said: list[dict[str, object]] = []

    def is_ready(line: str) -> bool:
        is_lossy = says_event("lossy")(line)
        if is_lossy or says_event("listening")(line):
            said.append(json.loads(line))
        return is_lossy

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    command = python_command("loadtests.harness.lossyrelay", "--open", "--listen", "127.0.0.1:0")
    command += ["--allow", f"127.0.0.1:{port}"]
    async with server, Process([*command, "--loss", "0.2"], ready=is_ready):
        events = {entry["event"]: entry for entry in said}
        control = int(str(events["lossy"]["control"]))
        async with attach(str(events["listening"]["url"]), proxy=None, attach_timeout=60) as attachment:
            reader, writer = await attachment.open_connection("127.0.0.1", port, timeout=60)
            for _ in range(30):
                writer.write(b"x" * 1000)
                assert await reader.readexactly(1000) == b"x" * 1000
            writer.close()
            await writer.wait_closed()
        before = await ask_loss(control)
        assert before["lost"] > 0
        assert (await ask_loss(control, "0"))["share"] == 0


@in_loop
async def test_fast_retransmit_repairs_random_loss_at_the_servlet() -> None:
    """Every byte arrives, and fast retransmit repairs more losses than timeouts do."""
    lossy = LossyFilter(Bernoulli(0.03), 7)
    config = load_config("", Overrides(listen=("127.0.0.1:0",), allow=("127.0.0.1:*",), is_open=True))
    target = await asyncio.start_server(serve, "127.0.0.1", 0)
    data = Random(1).randbytes(24 << 20)
    async with (
        target,
        RunningRelay(config, packet_filter=lossy) as running,
        attach(f"http://{running.addresses[0]}", proxy=None, carrier="poll", attach_timeout=60) as attachment,
    ):
        reader, writer = await attachment.open_connection(*target.sockets[0].getsockname(), timeout=60)
        writer.write(b"s")
        for start in range(0, len(data), 1 << 18):
            writer.write(data[start : start + (1 << 18)])
            await writer.drain()
        writer.write_eof()
        assert await reader.readexactly(24) == len(data).to_bytes(8) + xxhash.xxh3_128(data).digest()
        (stats,) = attachment.stats().connections.values()
        writer.close()
        await writer.wait_closed()
    assert lossy.lost > 0
    assert stats.resent_by_cause["retransmit_reordered"] > stats.resent_by_cause.get("retransmit_timeout", 0)
