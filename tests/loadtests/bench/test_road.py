"""The benchmark of the whole path: its arithmetic, and a small run between real processes."""

import json
from pathlib import Path

import pytest

from loadtests.bench import programs, road_paths
from loadtests.bench.road import main
from loadtests.harness import processes
from loadtests.harness.compiled import NotCompiledError


def test_a_small_run_measures_each_path_and_compares_it_with_the_bare_one(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--size", "512KiB", "--runs", "1", "--echoes", "10", "--only", "bare-1,link-service", "--json"]
    assert main(arguments) == 0
    found = json.loads(capsys.readouterr().out)
    bare, link = found["rows"]
    assert (bare["name"], link["name"], link["size_bytes"]) == ("bare-1", "link-service", 512 * 1024)
    assert min(link["up_mb_s"], link["down_mb_s"], link["echo_p50_us"]) > 0
    assert link["echo_p50_us"] <= link["echo_p99_us"]
    assert link["up_of_bare"] == pytest.approx(link["up_mb_s"] / bare["up_mb_s"])
    assert bare["echo_of_bare"] == 1


@pytest.mark.parametrize(
    ("arguments", "why"), [(["--only", "nothing"], "there is no path named"), (["--size", "x"], "--size")]
)
def test_wrong_arguments_are_refused(arguments: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert why in capsys.readouterr().err


def test_a_missing_peer_is_an_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(programs, "which", lambda name: None)
    monkeypatch.setattr(road_paths, "start_role", lambda stack, *arguments: "1")
    assert main(["--only", "socat", "--size", "1KiB", "--runs", "1"]) == 2
    assert "socat is not installed" in capsys.readouterr().err


def test_a_missing_compiled_build_is_an_error(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def nothing(root: Path) -> dict[str, str]:
        raise NotCompiledError("there is no compiled build: run make compiled")

    monkeypatch.setattr(processes, "compiled_environment", nothing)
    assert main(["--only", "link-compiled", "--size", "1KiB", "--runs", "1"]) == 2
    assert "make compiled" in capsys.readouterr().err


def test_a_slow_path_keeps_its_delay_and_its_rate(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--size", "2MiB", "--runs", "1", "--echoes", "20", "--only", "bare-slow,stream-slow", "--json"]
    assert main(arguments) == 0
    bare, stream = json.loads(capsys.readouterr().out)["rows"]
    assert bare["echo_p50_us"] >= 100_000
    assert max(bare["up_mb_s"], bare["down_mb_s"], stream["up_mb_s"], stream["down_mb_s"]) <= 50


def test_a_path_through_nginx_is_compared_with_another_one(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--size", "512KiB", "--runs", "1", "--echoes", "10", "--only", "poll-nginx,stream-nginx", "--json"]
    assert main(arguments) == 0
    poll, stream = json.loads(capsys.readouterr().out)["rows"]
    assert stream["down_of_beside"] == pytest.approx(stream["down_mb_s"] / poll["down_mb_s"])
    assert stream["up_of_bare"] is None
