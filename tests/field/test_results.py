"""The judgement of results."""

import pytest

from tests.field import results
from tests.field.results import Doctor, Outcome, Result, complaints, judge, mended
from tests.field.rows import Row

PLAIN = Row("x", "X")
REFUSED = Row("x", "X", refused=4)
WELL = Doctor(0, "the tunnel works here")
ILL = Doctor(3, "no relay")


def result(**fields: object) -> Result:
    return Result(**{"row": "x", "carrier": "auto", **fields})  # type: ignore[arg-type]


def test_a_result_without_a_complaint_is_whole() -> None:
    assert judge(PLAIN, result(doctor=WELL)) is Outcome.WHOLE
    assert judge(PLAIN, result()) is Outcome.WHOLE


@pytest.mark.parametrize("part", ["attach", "up", "down", "echo", "idle", "kill"])
def test_each_broken_part_is_a_failure(part: str) -> None:
    assert judge(PLAIN, result(broken={part: "why"})) is Outcome.FAILED


@pytest.mark.parametrize("key", ["up", "auto:up"])
def test_a_known_part_is_no_failure(key: str) -> None:
    row = Row("x", "X", known={key: "reason"})
    assert judge(row, result(broken={"up": "why"})) is Outcome.KNOWN
    assert judge(row, result(broken={"up": "why", "down": "why"})) is Outcome.FAILED


def test_a_part_that_is_known_for_one_carrier_fails_for_the_other() -> None:
    row = Row("x", "X", known={"poll:up": "reason"})
    assert judge(row, result(broken={"up": "why"})) is Outcome.FAILED


def test_a_refusal_must_have_the_expected_exit_code() -> None:
    assert judge(REFUSED, result(broken={"attach": "401"}, code=4, doctor=ILL)) is Outcome.REFUSED
    assert judge(REFUSED, result(broken={"attach": "401"}, code=3, doctor=ILL)) is Outcome.FAILED
    assert judge(REFUSED, result(broken={"attach": "silence"})) is Outcome.FAILED


def test_a_client_that_attaches_where_it_must_not_is_a_failure() -> None:
    assert list(complaints(REFUSED, result())) == [("attach", "the client attached to a path that must be refused")]


def test_the_doctor_must_agree_with_the_measurement() -> None:
    assert judge(PLAIN, result(doctor=ILL)) is Outcome.FAILED
    broken = {"up": "why"}
    assert dict(complaints(PLAIN, result(broken=broken, doctor=WELL))) == {
        "up": "why",
        "doctor": "says 'the tunnel works here' (exit code 0), but the tunnel does not work",
    }
    assert dict(complaints(PLAIN, result(broken=broken, doctor=ILL))) == broken


@pytest.mark.parametrize("code", [-1, 1])
def test_a_doctor_that_crashed_never_agrees(code: int) -> None:
    found = dict(complaints(PLAIN, result(broken={"up": "why"}, doctor=Doctor(code, "Traceback"))))
    assert found["doctor"] == "crashed: Traceback"


def test_known_parts_that_are_whole_now_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"up": "reason", "poll:down": "reason", "auto:echo": "reason", "doctor": "reason"}
    monkeypatch.setattr(results, "ROWS", (Row("x", "X", known=known), Row("y", "Y", known=known)))
    measured = [result(broken={"up": "why"}), result(carrier="poll")]
    assert list(mended(measured)) == ["x: poll:down", "x: auto:echo"]
