"""The phases of one measurement, with a fake in place of `Stage` and its processes; and how the doctor's report is
read."""

import json
from typing import ClassVar

import pytest

from loadtests.harness.processes import NotReadyError
from tests.field import measure, target
from tests.field.measure import Run, measure_bare, read_report
from tests.field.results import Bare, Doctor, Outcome, judge
from tests.field.rig import serving
from tests.field.rows import Row
from tests.field.stage import StageError
from tests.support.loops import in_loop

ROW = Row("x", "X", seconds=30)
BARE = Bare(1, 1, 1)
REPORT = json.dumps({"findings": [], "summary": "the tunnel works here"})
FINDINGS = [
    {"verdict": "ok", "step": "relay"},
    {"verdict": "note", "step": "link"},
    {"verdict": "note", "step": "buffering"},
    {"verdict": "problem", "step": "target"},
]


class FakeStage:
    """Takes the place of `Stage`: its port is that of the target. Its class variables are the errors that its methods
    raise; a test sets them."""

    failure: ClassVar[Exception | None] = None
    given_up: ClassVar[StageError | None] = None
    relay_failure: ClassVar[Exception | None] = None

    def __init__(self, row: Row, carrier: str, target: int) -> None:
        self.port = target
        self.calls: list[str] = []

    def start(self) -> None:
        if self.failure is not None:
            raise self.failure

    def used_carrier(self) -> str:
        self.calls.append("used")
        return "poll" if len(self.calls) == 1 else "link"

    def check_forward(self) -> None:
        if self.given_up is not None:
            raise self.given_up

    async def replace_relay(self) -> None:
        if self.relay_failure is not None:
            raise self.relay_failure

    async def stop_forward(self) -> None:
        pass

    async def examine(self) -> tuple[int, str]:
        return 0, REPORT

    def close(self) -> None:
        pass


@pytest.fixture(autouse=True)
def stage(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(measure, "Stage", FakeStage)


async def measure_all(port: int, *, is_examined: bool = True, row: Row = ROW) -> Run:
    run = Run(row, "auto", port, mib=1, is_examined=is_examined)
    await run.start()
    await run.transfer(BARE)
    await run.stay_idle(0)
    await run.kill()
    await run.examine()
    await run.close()
    return run


@in_loop
async def test_a_measurement_without_faults_is_whole() -> None:
    async with serving(target.serve) as port:
        result = (await measure_all(port)).result
    figures = (result.up_bps, result.down_bps, result.echo_ms, result.idle_ms, result.kill_s)
    assert all(figure is not None for figure in figures)
    assert (result.broken, result.used, result.bare) == ({}, "poll, then link", BARE)
    assert result.doctor == Doctor(0, "the tunnel works here")
    assert judge(ROW, result) is Outcome.WHOLE


@in_loop
async def test_a_client_that_does_not_attach_is_recorded_with_its_exit_code(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStage, "failure", StageError("tunnel: HTTP 401", 4))
    result = (await measure_all(1)).result
    assert (result.broken, result.code, result.up_bps) == ({"attach": "tunnel: HTTP 401"}, 4, None)
    assert result.doctor is not None


@in_loop
async def test_the_doctor_examines_a_client_that_neither_attaches_nor_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStage, "failure", StageError("the client did not attach within 45 s: waiting", None))
    result = (await measure_all(1)).result
    assert (result.code, result.up_bps) == (None, None)
    assert result.broken == {"attach": "the client did not attach within 45 s: waiting"}
    assert result.doctor == Doctor(0, "the tunnel works here")
    assert (await measure_all(1, is_examined=False)).result.doctor is None


@in_loop
async def test_a_program_that_does_not_start_leaves_nothing_to_examine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStage, "failure", NotReadyError("caddy run: ended\nno such option"))
    result = (await measure_all(1)).result
    assert result.broken == {"attach": "a program did not start: no such option"}
    assert result.doctor is None


@in_loop
async def test_a_client_that_gives_up_later_counts_as_not_attached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only the client's last error is recorded, without those of transfers, which its end may have caused."""
    monkeypatch.setattr(FakeStage, "given_up", StageError("several relays answer", 3))
    async with serving(target.serve) as port:
        row = Row("x", "X", refused=3)
        result = (await measure_all(port, row=row, is_examined=False)).result
    assert (result.broken, result.code, result.kill_s) == ({"attach": "several relays answer"}, 3, None)
    assert judge(row, result) is Outcome.REFUSED


@in_loop
async def test_transfers_that_break_are_recorded() -> None:
    async with serving(target.serve) as port:
        pass  # nothing listens there any more
    result = (await measure_all(port, is_examined=False)).result
    assert set(result.broken) == {"up", "down", "echo"}
    assert result.doctor is None


@in_loop
async def test_a_relay_that_does_not_come_back_breaks_only_the_part_kill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FakeStage, "relay_failure", NotReadyError("tunnel_servlet serve: ended"))
    async with serving(target.serve) as port:
        result = (await measure_all(port)).result
    assert result.broken == {"kill": "tunnel_servlet serve: ended"}


@in_loop
async def test_measure_bare_measures_both_rates_and_the_echo() -> None:
    async with serving(target.serve) as port:
        bare = await measure_bare(port, 1)
    assert min(bare.up_bps, bare.down_bps, bare.echo_ms) > 0


def test_a_report_is_read_after_other_lines() -> None:
    text = json.dumps({"findings": FINDINGS, "summary": "the target was not reached"})
    assert read_report(6, f"a warning\n{text}\n") == Doctor(
        6, "the target was not reached", ["link", "buffering"], ["target"]
    )


def test_a_doctor_without_a_report_has_crashed() -> None:
    assert read_report(1, "Traceback\nValueError: x\n") == Doctor(1, "ValueError: x")
    assert read_report(0, "") == Doctor(-1, "it printed nothing")
    assert read_report(0, "[]") == Doctor(-1, "[]")
