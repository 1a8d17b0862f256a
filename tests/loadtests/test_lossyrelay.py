"""The lossy relay: a tunnel through it loses nothing, and its loss changes while it runs."""

import asyncio
import json

import pytest

from loadtests import lossyrelay
from loadtests.losses import Bernoulli, LossyFilter
from loadtests.lossyrelay import Control, ask_loss
from loadtests.processes import Process, python_command, says_event
from tests.support.loops import in_loop
from tunnel import attach


def test_the_control_changes_the_loss_and_says_how_it_is() -> None:
    lossy = LossyFilter(Bernoulli(0), 1)
    control = Control(lossy)
    assert json.loads(control.answer("")) == {"share": 0, "passed": 0, "lost": 0}
    assert json.loads(control.answer("0.25"))["share"] == 0.25
    assert "is no loss" in json.loads(control.answer("much"))["error"]
    assert lossy.model == Bernoulli(0.25)


@pytest.mark.parametrize("arguments", [["--loss", "much"], ["--allow", "nonsense:x:y"]])
def test_what_is_wrong_is_said(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert lossyrelay.main(["--listen", "127.0.0.1:0", *arguments]) == 2
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
    command = python_command("loadtests.lossyrelay", "--listen", "127.0.0.1:0", "--allow", f"127.0.0.1:{port}")
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
