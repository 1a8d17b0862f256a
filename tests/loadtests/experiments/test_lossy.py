"""A small transfer both ways through the fault proxy, judged by digests."""

import asyncio
import json

import pytest

from loadtests.experiments.lossy import Case, main, run_case
from loadtests.harness.relays import RelayProcess

MIB = 1024 * 1024
HARD = ("--drop-request", "0.1", "--drop-response", "0.1", "--duplicate", "0.1", "--flip", "0.1")


def test_every_byte_arrives_through_many_faults() -> None:
    with RelayProcess() as relay:
        outcome = asyncio.run(run_case(Case("hard", HARD), relay, 4 * MIB, seed=3))
    assert outcome.digests_equal
    assert outcome.size_bytes == 4 * MIB
    assert sum(outcome.faults.values()) > 0


def test_an_invalid_size_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--size", "much"])
    assert ended.value.code == 2
    assert "--size" in capsys.readouterr().err


def test_all_cases_are_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--size", "256KiB", "--json"]) == 0
    cases = json.loads(capsys.readouterr().out)["cases"]
    assert [case["name"] for case in cases] == ["no faults", "faults", "late", "late, silent faults"]
    assert [case["kept"] is None for case in cases] == [True, False, True, False]
