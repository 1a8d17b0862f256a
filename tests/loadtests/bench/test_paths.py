"""The speed on long paths: what the path does to bytes, what counts, and a small run between real processes."""

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

import pytest

from loadtests.bench import programs
from loadtests.bench.paths import Figures, Path, main, measure, table
from loadtests.bench.peers.contenders import Front
from loadtests.bench.road_peer import SlowPath
from tunnel.process.event_loops import new_event_loop

PATH = Path(20, 0, 8)


@contextmanager
def nothing_between(port: int) -> Iterator[int]:
    yield port


def test_the_connections_of_a_path_share_its_rate_in_each_direction() -> None:
    path = SlowPath(delay_s=0.5, rate_bps=1000)
    assert path.passes_s(1000, 0, 10.0) == 11.5
    assert path.passes_s(1000, 0, 10.0) == 12.5
    assert path.passes_s(1000, 1, 10.0) == 11.5
    assert path.is_full(0, 11.9)
    assert not path.is_full(0, 11.96)
    assert not SlowPath(delay_s=0.5).is_full(0, 0.0)


def test_a_stream_that_ends_carries_nothing() -> None:
    def start(stack: ExitStack, target: int, front: Front) -> int:
        closed = stack.enter_context(socket.socket())
        closed.bind(("127.0.0.1", 0))
        return int(closed.getsockname()[1])

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        found = runner.run(measure("closed", start, PATH, 0.1))
    assert found.mb_s == {"up": 0.0, "down": 0.0}


def test_the_table_compares_with_the_bare_forwarder_of_the_same_path() -> None:
    other = Path(100, 1, 8)
    rows = [Figures(name, path, {"up": up, "down": 2.0}, 20.04, 90.6) for path, name, up in (
        (PATH, "bare", 4.0), (PATH, "tunnel", 3.0), (other, "bare", 0.0), (other, "tunnel", 1.0)
    )]  # fmt: skip
    lines = table(rows).split("\n")
    assert [lines[1], lines[6]] == ["20 ms, 0 % lost, 8 Mbit/s", "100 ms, 1 % lost, 8 Mbit/s"]
    assert lines[4].split() == ["tunnel", "3.00", "0.75", "2.00", "1.00", "20.0", "91"]
    assert lines[9].split()[1:3] == ["1.00", "1.00"]


def test_the_tunnel_carries_a_stream_over_a_path_that_loses_exchanges(capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--only", "tunnel-2", "--round-trips", "20", "--losses", "1", "--rates", "8", "--seconds", "1"]
    assert main([*options, "--json"]) == 0
    bare, ours = json.loads(capsys.readouterr().out)["paths"]
    assert (bare["name"], ours["name"]) == ("bare", "tunnel-2")
    assert all(0.1 < one["mb_s"][way] < 1.5 for one in (bare, ours) for way in ("up", "down"))
    assert bare["echo_p50_ms"] >= 20


def test_a_missing_program_and_an_unknown_one_are_errors(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(programs, "which", lambda name: None)
    options = ["--round-trips", "20", "--losses", "0", "--rates", "8", "--seconds", "0.1"]
    assert main([*options, "--only", "chisel"]) == 2
    assert "chisel is not installed" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["--only", "nonsense"])
