"""The same seed gives the same trace, byte for byte, whatever the order of hashes."""

from pathlib import Path

import pytest

from tests.sim.rig import trace_of


@pytest.mark.parametrize("seed", [1, 12, 35])
def test_the_same_seed_gives_the_same_trace_under_another_hash_seed(seed: int, tmp_path: Path) -> None:
    first = trace_of(seed, "1", tmp_path / "one")
    second = trace_of(seed, "2", tmp_path / "two")
    assert first == second
    assert b"fault_injected" in first


def test_encrypted_runs_repeat_although_tls_draws_its_own_random_bytes(tmp_path: Path) -> None:
    assert trace_of(35, "1", tmp_path / "one", "--encrypted") == trace_of(35, "2", tmp_path / "two", "--encrypted")


@pytest.mark.parametrize("seed", [3, 12])
def test_the_short_way_through_the_relay_changes_no_trace(seed: int, tmp_path: Path) -> None:
    assert trace_of(seed, "1", tmp_path / "one") == trace_of(seed, "1", tmp_path / "two", "--general-way")


def test_other_seeds_give_other_traces(tmp_path: Path) -> None:
    assert trace_of(1, "0", tmp_path) != trace_of(2, "0", tmp_path)
