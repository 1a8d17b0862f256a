"""A small transfer both ways through the fault proxy, judged by digests."""

import asyncio
import json

import pytest
from msgspec.structs import replace

from loadtests.experiments import lossy
from loadtests.experiments.lossy import CASES, Case, Outcome, main, run_case
from loadtests.faultproxy.faults import FaultKind
from loadtests.harness.relays import RelayProcess

MIB = 1024 * 1024
HARD = ("--drop-request", "0.1", "--drop-response", "0.1", "--duplicate", "0.1", "--flip", "0.1")


def test_every_byte_arrives_through_many_faults() -> None:
    with RelayProcess() as relay:
        outcome = asyncio.run(run_case(Case("hard", HARD), relay, 4 * MIB, seed=3))
    assert outcome.digests_equal
    assert outcome.size_bytes == 4 * MIB
    assert sum(outcome.faults.values()) > 0
    assert set(outcome.faults) <= set(map(str, FaultKind))


def test_an_invalid_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--size", "much"])
    assert ended.value.code == 2
    assert "--size" in capsys.readouterr().err


def test_all_cases_are_reported(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    often = {"": (), "no faults": HARD, "late": (*HARD, "--delay", "5ms")}
    cases = tuple(replace(case, options=often[case.compared_with] or case.options, share=1) for case in CASES)
    monkeypatch.setattr(lossy, "CASES", cases)
    assert main(["--size", "4MiB", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cases"]
    assert [case["name"] for case in found] == ["no faults", "faults", "late", "late, silent faults"]
    assert [case["kept"] is None for case in found] == [True, False, True, False]


def test_a_case_whose_faults_did_not_occur_proves_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every byte is right, but the proxy passed everything on."""
    good = Outcome("faults", 1, 1.0, 1.0, True, {"flip": 1}, "no faults", 1.0)
    assert good.failure == ""
    assert replace(good, digests_equal=False).failure == "DIGESTS DIFFER"
    assert "NO FAULT WAS INJECTED" in replace(good, faults={}).failure
    assert replace(good, faults={}, compared_with="").failure == ""
    monkeypatch.setattr(lossy, "CASES", (CASES[0], replace(CASES[1], options=())))
    assert main(["--size", "1MiB"]) == 1
    assert "NO FAULT WAS INJECTED, so it proves nothing" in capsys.readouterr().out


def test_a_transfer_of_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--size", "0"])
    assert ended.value.code == 2
    assert "there is nothing to transfer" in capsys.readouterr().err
