"""The conclusions of the doctor from single exchanges. tests/client/doctor/test_examination.py has real paths."""

from __future__ import annotations

import pytest

from tests.client.doctor.prober import Played, finding, prober
from tests.support.loops import run
from tunnel.carriers.failures import Failure
from tunnel.carriers.probe import ProbeError, Reply
from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.path_steps import examine_path


@pytest.fixture(autouse=True)
def no_load(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_client.doctor.path_steps.LOAD_S", 0.0)


def examined(played: Played) -> Report:
    report = Report("http://relay.invalid")
    run(examine_path(report, prober(played)))
    return report


@pytest.mark.parametrize("caches", [False, True])
def test_a_hop_that_answers_from_its_cache_is_found(caches: bool) -> None:
    found = finding(examined(Played(caches=caches)), "caching")
    assert (found.verdict is Verdict.NOTE) == found.data["cached"] == caches
    assert found.text.startswith("a hop answers from its cache" if caches else "every request is answered by the relay")


def test_a_lost_exchange_ends_its_step_with_a_note_and_the_other_steps_go_on() -> None:
    class Lossy(Played):
        async def repeat(self, size: int = 0) -> Reply:
            if size == 64 << 10 and not lost:  # the first of those that look for altered data
                lost.append(size)
                raise ProbeError(Failure("cut", "ServerDisconnectedError"))
            return await super().repeat(size)

    lost: list[int] = []
    report = examined(Lossy())
    assert report.exit_code == 0
    found = finding(report, "altering")
    assert found.verdict is Verdict.NOTE
    assert found.text == "an exchange failed on the way (ServerDisconnectedError)"
    assert finding(report, "body limit").verdict is Verdict.OK
