"""The doctor's report, as the field reads it."""

import json

from tests.field.measure import read_report
from tests.field.results import Doctor

FINDINGS = [
    {"verdict": "ok", "step": "relay"},
    {"verdict": "note", "step": "link"},
    {"verdict": "note", "step": "buffering"},
    {"verdict": "problem", "step": "target"},
]


def test_a_report() -> None:
    text = json.dumps({"findings": FINDINGS, "summary": "the target was not reached"})
    assert read_report(6, f"a warning\n{text}\n") == Doctor(
        6, "the target was not reached", ["link", "buffering"], ["target"]
    )


def test_a_doctor_without_a_report_has_crashed() -> None:
    assert read_report(1, "Traceback\nValueError: x\n") == Doctor(1, "ValueError: x")
    assert read_report(0, "") == Doctor(-1, "it printed nothing")
    assert read_report(0, "[]") == Doctor(-1, "[]")
