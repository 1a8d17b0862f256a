"""A process that runs under the wrapper tells how many objects of the tunnel's own types it holds."""

import asyncio
from pathlib import Path

import pytest

from loadtests.harness.counted import Counted, own_objects
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, says_event
from tests.support.loops import in_loop
from tunnel import attach
from tunnel.core.ranges import RangeSet


def test_own_types_are_counted_and_others_are_not() -> None:
    before = own_objects()
    kept = [RangeSet() for _ in range(7)]
    after = own_objects()
    name = f"{RangeSet.__module__}.RangeSet"
    assert after[name] - before.get(name, 0) == len(kept)
    assert not [kind for kind in after if kind.split(".")[0] in ("builtins", "pytest", "loadtests")]


@in_loop
async def test_a_relay_tells_its_objects_while_it_serves(tmp_path: Path) -> None:
    counted = Counted(tmp_path / "counts")
    with hold_port() as port:
        command = counted.command(
            "tunnel_servlet", "serve", "--open", "--listen", f"127.0.0.1:{port}", "--exit", "none"
        )
        async with Process(command, ready=says_event("listening")) as relay:
            alone = await counted.ask(relay)
            async with attach(f"http://127.0.0.1:{port}", proxy=None, carrier="poll", attach_timeout=60) as attachment:
                await attachment.start_server(lambda reader, writer: asyncio.sleep(0), "anything")
                beside = await counted.ask(relay)
            grown = {kind for kind, count in beside.items() if count > alone.get(kind, 0)}
            assert any(kind.startswith("tunnel_servlet.switch.") for kind in grown), grown
            assert sum(beside.values()) > sum(alone.values())
            assert await counted.ask(relay, collect=True)
            assert relay.is_running


@in_loop
async def test_a_process_that_does_not_answer_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("loadtests.harness.counted._ANSWER_S", 0.2)
    (tmp_path / "counts").write_text('{"of an earlier question": 1}')
    async with Process(["bash", "-c", "trap '' USR1; echo on; sleep 60"], ready=lambda line: line == "on\n") as other:
        with pytest.raises(TimeoutError):
            await Counted(tmp_path / "counts").ask(other)
        other.kill()
        with pytest.raises(ChildProcessError, match="has ended"):
            await Counted(tmp_path / "counts").ask(other)
