"""The load test of the broker: a short run with real processes; and it detects the errors that it looks for."""

from pathlib import Path

import pytest
from msgspec.structs import replace

from loadtests.broker.__main__ import main
from loadtests.broker.run import GROUPS, PARTITIONS, Outcome, check
from loadtests.broker.sides import NUMBER_BYTES, make_payload


def test_groups_get_every_message_once_though_every_process_is_killed(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["--messages", "40000", "--kills", "7", "--limit", "150"])  # fewer would be over before the last kill
    shown = capsys.readouterr()
    assert code == 0, shown
    assert "relay 1, broker 1, producer 0 1, producer 1 1, billing 1, search 1, audit 1" in shown.out
    assert "taken in 120,000: lost 0, of these acknowledged 0, twice 0, out of order 0" in shown.out


@pytest.mark.parametrize(
    ("numbers", "expected"),
    [
        ([0, 1, 2, 3], (0, 0, 0)),
        ([0, 1, 3], (1, 0, 1)),
        ([0, 1, 1, 2, 3], (0, 1, 3)),
        ([1, 0, 2, 3], (0, 0, 2)),
    ],
)
def test_wrong_messages_are_counted_by_kind(tmp_path: Path, numbers: list[int], expected: tuple[int, int, int]) -> None:
    for group in GROUPS:
        (tmp_path / group).mkdir()
        for partition in range(PARTITIONS):
            found = numbers if (group, partition) == (GROUPS[0], 0) else [0, 1, 2, 3]
            payloads = [make_payload(partition, number)[:NUMBER_BYTES] for number in found]
            (tmp_path / group / str(partition)).write_bytes(b"".join(payloads))
    outcome = Outcome(8, finished=True)
    check(tmp_path, 4, outcome)
    assert (outcome.lost, outcome.twice, outcome.out_of_order) == expected
    assert outcome.is_good is (numbers == [0, 1, 2, 3])


def test_a_run_without_messages_or_kills_proves_nothing() -> None:
    good = Outcome(8, received=24, kills={"relay": 1}, kills_wanted=3, finished=True)
    assert good.is_good
    assert not replace(good, kills={"relay": 0}).is_good
    assert not replace(good, messages=0, received=0).is_good
    assert not replace(good, received=23).is_good  # a group's file was not read
