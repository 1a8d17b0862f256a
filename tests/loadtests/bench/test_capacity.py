"""The cost of idle attachments, measured with a few of them."""

import asyncio

import pytest

from loadtests.bench.capacity import CARRIERS, Capacity, main, measure, table


def test_each_carrier_and_count_has_a_row() -> None:
    found = asyncio.run(measure([1, 3], list(CARRIERS), settle_s=0.1, seconds=0.1))
    assert [(one.carrier, one.attachments) for one in found] == [("link", 1), ("link", 3), ("poll", 1), ("poll", 3)]
    assert [one.bytes_each for one in found[::2]] == [0.0, 0.0]  # the memory of the first is not counted
    assert all(one.core_percent >= 0 for one in found)


def test_the_table_says_what_each_attachment_costs() -> None:
    text = table([Capacity("link", 10, 0.0, 0.1), Capacity("link", 1000, 16 * 1024, 2.26)])
    assert text.splitlines()[1:] == [
        "link                10         -          0.1",
        "link             1,000      16.0          2.3",
    ]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--counts", "100,10"], "invalid _counts value"),
        (["--counts", "0"], "invalid _counts value"),
        (["--carriers", "pigeon"], "there is no carrier named pigeon"),
        (["--counts", "100000000"], "need 200000100 open files"),
    ],
)
def test_what_cannot_be_measured_is_refused(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 2
    assert said in capsys.readouterr().err
