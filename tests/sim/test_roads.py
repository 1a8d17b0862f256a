"""The ladder keeps its promises in a few seeds of `python -m tests.sim.roads`, and the seeds find a broken ladder."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.sim.roads import Broken, RoadWorld, main
from tunnel.exchange import Step
from tunnel.exchange.roads import ladder


@pytest.mark.parametrize("seed", range(60))
def test_the_ladder_keeps_its_promises(seed: int) -> None:
    RoadWorld(seed).run()


def run_seeds(count: int) -> None:
    for seed in range(count):
        RoadWorld(seed).run()


@pytest.mark.interpreted
def test_the_seeds_make_every_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    made: set[Step] = set()
    decide: Callable[..., None] = ladder.Ladder._decide

    def note(self: ladder.Ladder, step: Step, *rest: Any) -> None:
        made.add(step)
        decide(self, step, *rest)

    monkeypatch.setattr(ladder.Ladder, "_decide", note)
    run_seeds(30)
    assert made == set(Step)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("_PROBATION_BYTES", 1 << 20, "has not proven itself"),
        ("_AGE_US", 0, "young attachment"),
        ("_REST_US", 1000, "too soon"),
    ],
)
def test_a_broken_ladder_is_found(name: str, value: int, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ladder, name, value)
    with pytest.raises(Broken, match=text):
        run_seeds(200)


def test_the_command_counts_failures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert main(["--seeds", "2"]) == 0
    monkeypatch.setattr(ladder, "_AGE_US", 0)
    assert main(["--seeds", "40"]) == 1
    said = capsys.readouterr().out
    assert "2 seeds, " in said
    assert "repeat: python -m tests.sim.roads --from" in said
