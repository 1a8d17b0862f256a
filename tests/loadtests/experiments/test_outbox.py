"""The load test of the outbox: a short run with real processes; and it detects the errors that it looks for."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtests.experiments.outbox.__main__ import main
from loadtests.experiments.outbox.run import Outcome, check
from loadtests.experiments.outbox.sides import make_payload, payload_number
from tunnel.ground.exit_codes import INTEGRITY, LOST
from tunnel.messages import Inbox


def test_messages_arrive_once_and_in_order_though_every_process_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--messages", "3000", "--kills", "3", "--limit", "100"]) == 0
    shown = capsys.readouterr().out
    assert "kill -9: sender 1, receiver 1, relay 1" in shown
    assert "received 3,000: lost 0, twice 0, out of order 0, altered 0" in shown


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0, 1, 2, 3], (0, 0, 0, 0)),
        ([0, 1, 3], (1, 0, 1, 0)),
        ([0, 1, 1, 2, 3], (0, 1, 1, 0)),
        ([1, 0, 2, 3], (0, 0, 3, 0)),
        ([0, 1, 2, 3, 99], (0, 0, 0, 1)),
    ],
)
def test_wrong_messages_are_counted_by_kind(
    tmp_path: Path, numbers: list[int], expected: tuple[int, int, int, int]
) -> None:
    header = b"\x00" + b"o" * 16 + (1).to_bytes(8, "big")
    with Inbox.open(tmp_path) as inbox:
        inbox.log.append([header + index.to_bytes(8, "big") + make_payload(n) for index, n in enumerate(numbers)])
    outcome = Outcome(4, finished=True)
    check(tmp_path, outcome)
    assert (outcome.lost, outcome.twice, outcome.out_of_order, outcome.altered) == expected
    assert outcome.is_good is (numbers == [0, 1, 2, 3])


def test_kills_that_hit_nothing_prove_nothing() -> None:
    good = Outcome(4, received=4, kills={"relay": 2}, idle_kills=1, finished=True)
    assert good.is_good
    assert not replace(good, idle_kills=2).is_good
    assert not replace(good, messages=0, received=0).is_good
    assert replace(good, kills={"relay": 0}, idle_kills=0).is_good  # a run without kills was wanted


def test_the_exit_code_distinguishes_an_unfinished_run_from_wrong_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    assert payload_number(make_payload(7)) == 7
    for outcome, code in ((Outcome(1), LOST), (Outcome(1, lost=1, finished=True), INTEGRITY)):
        monkeypatch.setattr("loadtests.experiments.outbox.__main__.run", lambda *a, outcome=outcome, **k: outcome)
        assert main(["--json"]) == code
