"""The order of the phases of many measurements."""

import asyncio
from typing import Any, ClassVar

import pytest

from tests.field import waves
from tests.field.results import Bare, Result
from tests.field.rows import find_rows
from tests.field.waves import Plan, measure_rows
from tests.support.loops import in_loop


class FakeRun:
    """Records its phases in `log`; `moving` and `resting` count the runs that transfer, or are idle, at the same time.

    `resting_most` is the highest count of idle runs."""

    log: ClassVar[list[str]] = []
    moving = 0
    resting = 0
    resting_most = 0

    def __init__(self, row: Any, carrier: str, target: int, *, mib: int | None, is_examined: bool) -> None:
        self.row = row
        self.result = Result(row.name, carrier)
        self._name = f"{row.name} {carrier}"
        self._is_examined = is_examined

    async def _phase(self, name: str) -> None:
        FakeRun.log.append(f"{name} {self._name}")
        await asyncio.sleep(0)

    async def start(self) -> None:
        await self._phase("start")

    async def transfer(self, bare: Bare) -> None:
        FakeRun.moving += 1
        assert FakeRun.moving == 1
        await self._phase("transfer")
        FakeRun.moving -= 1

    async def stay_idle(self, seconds: float) -> None:
        FakeRun.resting += 1
        FakeRun.resting_most = max(FakeRun.resting_most, FakeRun.resting)
        assert FakeRun.moving == 0
        await self._phase(f"idle {seconds:.0f}")
        FakeRun.resting -= 1

    async def kill(self) -> None:
        await self._phase("kill")

    async def examine(self) -> None:
        await self._phase(f"examine {self._is_examined}")

    async def close(self) -> None:
        await self._phase("close")


@pytest.fixture(autouse=True)
def fakes(monkeypatch: pytest.MonkeyPatch) -> None:
    async def measure_bare(port: int, mib: int) -> Bare:
        return Bare(1, 1, 1)

    FakeRun.log = []
    FakeRun.resting_most = 0
    monkeypatch.setattr(waves, "Run", FakeRun)
    monkeypatch.setattr(waves, "start_target", lambda stack: 1)
    monkeypatch.setattr(waves, "start_forwarder", lambda stack, port: 2)
    monkeypatch.setattr(waves, "measure_bare", measure_bare)


@in_loop
async def test_waves_come_in_turn_and_the_runs_of_a_wave_transfer_one_by_one_and_are_idle_together() -> None:
    told: list[str] = []
    plan = Plan(("auto", "poll"), idle_s=70, side_by_side=2)
    results = await measure_rows(find_rows("caddy,envoy"), plan, told.append)
    assert [(result.row, result.carrier) for result in results] == [
        ("caddy", "auto"),
        ("caddy", "poll"),
        ("envoy", "auto"),
        ("envoy", "poll"),
    ]
    phases = ["start", "transfer", "idle 70", "kill", "examine", "close"]
    first = [line for line in FakeRun.log if "caddy" in line]
    assert FakeRun.log[: len(first)] == first
    assert [line.removesuffix(" caddy auto") for line in first if "auto" in line] == [
        f"{phase} True" if phase == "examine" else phase for phase in phases
    ]
    assert "examine False caddy poll" in first
    assert FakeRun.resting_most == 2
    assert told[0] == "0 of 4 measured; next: caddy"


@in_loop
async def test_a_run_is_closed_even_if_a_phase_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    async def fail(self: FakeRun) -> None:
        raise RuntimeError("x")

    monkeypatch.setattr(FakeRun, "kill", fail)
    with pytest.raises(RuntimeError):
        await measure_rows(find_rows("caddy"), Plan(("auto",)), lambda line: None)
    assert FakeRun.log[-1] == "close caddy auto"
