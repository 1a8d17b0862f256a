"""Runs every target on committed and on seeded random inputs, without a fuzzer; and tests the tools of the fuzzer."""

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from tests.fuzz import corpus
from tests.fuzz.__main__ import main
from tests.fuzz.registry import TARGETS
from tests.fuzz.runner import Result, choose_engine, parse_libfuzzer, run_target
from tests.fuzz.target import Target
from tests.fuzz.worker import CRASHED, fuzz_by_chance

RANDOM_INPUTS = 200


@pytest.mark.parametrize("name", TARGETS)
def test_committed_and_random_inputs_break_nothing(name: str) -> None:
    target = TARGETS[name]
    for data in (*corpus.committed(target).values(), *corpus.random_inputs(target, seed=1, count=RANDOM_INPUTS)):
        try:
            target.run(data)
        except Exception as error:
            error.add_note(f"the input: {data.hex()}")
            raise


# the corpus


@pytest.mark.parametrize("target", TARGETS.values(), ids=TARGETS)
def test_every_target_has_seeds_and_no_input_beyond_its_size(target: Target) -> None:
    seeds = corpus.read(target, corpus.SEEDS)
    assert seeds
    assert all(len(raw) <= target.size_max for raw in corpus.committed(target).values())


def test_seeds_read_back_as_they_were_written(tmp_path: Path) -> None:
    said: list[object] = []
    assert corpus.main(["--write"], tmp_path, said.append) == 0
    assert said == [f"written: {name}" for name in TARGETS]
    for target in TARGETS.values():
        assert corpus.read(target, tmp_path) == dict(target.seeds())
    assert corpus.main([], tmp_path, said.append) == 0
    (tmp_path / "ack.txt").write_text("# nothing\n")
    assert corpus.main([], tmp_path, said.append) == 1
    assert said[-1] == "differs: ack"
    assert corpus.main(["--help"], tmp_path, said.append) == 2


def test_random_inputs_depend_only_on_the_seed() -> None:
    target = TARGETS["packets"]
    first = list(corpus.random_inputs(target, 3, 50))
    assert first == list(corpus.random_inputs(target, 3, 50))
    assert first != list(corpus.random_inputs(target, 4, 50))
    assert len({corpus.mutated(b"abc", Random(seed)) for seed in range(50)}) > 40


# the tools


def no_seeds() -> Iterator[tuple[str, bytes]]:
    yield from ()


def breaks_on_long(data: bytes) -> None:
    assert len(data) < 5, "the input is too long"


def test_a_random_input_that_crashes_is_saved(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert fuzz_by_chance(Target("breaks", breaks_on_long, no_seeds), 60, 1, tmp_path) == CRASHED
    (saved,) = tmp_path.iterdir()
    with pytest.raises(AssertionError):
        breaks_on_long(saved.read_bytes())
    out, err = capsys.readouterr()
    assert json.loads(out)["executions"] >= 1
    assert "too long" in err


def test_a_worker_reports_its_result(tmp_path: Path) -> None:
    result = run_target("ack", "random", 1, tmp_path)
    assert not result.crashed
    assert result.verdict == "ok"
    assert result.executions > 100
    assert "ack" in result.line()
    assert result.as_json()["repeat"] == ""
    assert {path.name for path in (tmp_path / "corpus" / "ack").iterdir()} == {
        f"committed-{name}" for name in corpus.committed(TARGETS["ack"])
    }


_SPINS = """
import sys
from tests.fuzz import registry, worker
from tests.fuzz.target import Target
def spin(data):
    while True:
        pass
worker._GRACE_S = 1
registry.TARGETS["spins"] = Target("spins", spin, lambda: [("one", b"")])
worker.main(["spins", "random", "1", "1", sys.argv[1], sys.argv[1]])
"""


def test_a_worker_that_hangs_is_ended_after_its_share_of_processor_time(tmp_path: Path) -> None:
    ended = subprocess.run([sys.executable, "-c", _SPINS, str(tmp_path)], timeout=120, check=False)
    assert ended.returncode == -signal.SIGXCPU


@pytest.mark.parametrize(
    ("code", "verdict"), [(0, "ok"), (77, "CRASH"), (70, "TOO SLOW"), (-signal.SIGXCPU, "HANGS"), (3, "FAILED")]
)
def test_the_verdict_says_how_a_worker_ended(
    code: int, verdict: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(subprocess, "run", lambda *_, **__: subprocess.CompletedProcess([], code, b"", b""))
    result = run_target("ack", "random", 1, tmp_path)
    assert result.verdict.startswith(verdict)
    assert result.crashed is bool(code)


REPORT = """#2\tINITED cov: 9 ft: 9 corp: 1/1b exec/s: 0 rss: 50Mb
#757092\tDONE   cov: 22 ft: 62 corp: 15/1767b lim: 4096 exec/s: 126182 rss: 50Mb
stat::number_of_executed_units: 757093
stat::average_exec_per_sec:     126182
artifact_prefix='x/'; Test unit written to x/crash-1
"""


def test_the_report_of_libfuzzer_is_parsed() -> None:
    result = Result("ack", "atheris")
    parse_libfuzzer(result, REPORT)
    assert (result.executions, result.per_second) == (757093, 126182)
    assert (result.edges, result.features, result.corpus) == (22, 62, 15)
    assert result.repeat_command == "python -m tests.fuzz --repeat x/crash-1"
    nothing = Result("ack", "atheris")
    parse_libfuzzer(nothing, "")
    assert (nothing.edges, nothing.repeat_command) == (None, "nothing was saved")


def test_choosing_the_random_engine_is_explained(monkeypatch: pytest.MonkeyPatch) -> None:
    assert choose_engine(by_chance=True)[0] == "random"
    assert "seeded random inputs" in choose_engine(by_chance=True)[1]
    monkeypatch.setitem(sys.modules, "atheris", None)
    engine, reason = choose_engine(by_chance=False)
    assert engine == "random"
    assert reason.startswith("atheris is not installed here: seeded random inputs instead")


def test_the_command_reports_in_text_and_in_json(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--random", "--seconds", "0", "--target", "link", "--target", "ack"]
    assert main(arguments) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "seeded random inputs" in lines[0]
    assert [line.split()[0] for line in lines[1:]] == ["target", "link", "ack"]
    assert main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["engine"] == "random"
    assert [target["verdict"] for target in found["targets"]] == ["ok", "ok"]


def test_a_saved_input_can_be_repeated(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "ack"
    folder.mkdir()
    (folder / "input").write_bytes(b"abc")
    assert main(["--repeat", str(folder / "input")]) == 0
    assert "breaks nothing" in capsys.readouterr().out
    assert main(["--repeat", str(folder / "input"), "--target", "link"]) == 0
    assert main(["--repeat", str(tmp_path / "input")]) == 2
    assert main(["--target", "nonsense"]) == 2
