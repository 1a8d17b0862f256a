"""The table of engines and scenarios counts values, and names the figures that are off."""

from loadtests.diagnosis.cases import EVERY
from tests.analysis.compared import count_of_values, deviating, right_diagnoses
from tests.analysis.exactly_once import Attempts
from tests.analysis.spark_job import SparkFound
from tunnel.analysis.results.result import Analysis


def test_all_values_of_all_rows_are_counted() -> None:
    assert count_of_values({"a": 1, "b": [{"c": 2, "d": None}, {"c": 3}], "e": []}) == 4


def test_a_figure_is_off_by_more_than_one_per_cent_of_what_was_counted() -> None:
    assert deviating({"packets": (101, 100), "lost": (0, 0), "stalls": (99, 100)}) == []
    assert deviating({"packets": (102, 100), "lost": (1, 0)}) == ["packets: 102 instead of 100", "lost: 1 instead of 0"]


def test_a_diagnosis_is_right_if_the_verdict_names_the_trouble_first() -> None:
    totals = {"sent": 0, "lost": 0}
    reader = Analysis(totals=totals, unread=[{"of": "whole", "name": "", "us": 5, "is_main": True}])
    cases = {case.name: Analysis(totals=totals) for case in EVERY} | {"slow reader": reader, "300 ms": reader}
    found = SparkFound({}, {}, (0, 0), cases, "", Attempts({}, {}), (reader, reader), [])
    assert right_diagnoses(found) == ["slow reader"]
