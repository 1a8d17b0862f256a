"""A missing program skips a test, or fails it when real programs are required; the summary file counts the tests and
names the skipped ones. Tests that ran through real proxies are counted by the configurations of those proxies."""

import gc
from pathlib import Path

import pytest

CONFTEST = Path(__file__).parent / "conftest.py"
SUITE = """
import pytest

@pytest.mark.real("sh")
def test_present(): pass

@pytest.mark.real("no-such-program")
def test_absent(): pass

def test_wrong(): assert False
"""


def run(pytester: pytest.Pytester) -> list[str]:
    pytester.makeini("[pytest]\nmarkers = real(*programs): needs these")
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(test_suite=SUITE)
    pytester.runpytest_inprocess("--summary-file", "build/summary.txt", "-p", "no:cacheprovider")
    return (pytester.path / "build" / "summary.txt").read_text().splitlines()


def test_a_missing_program_skips(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REQUIRE_REAL", raising=False)
    assert run(pytester) == [
        "1 passed, 1 failed",
        "skipped: test_suite.py::test_absent: not on this machine: no-such-program (make system-deps)",
    ]


def test_a_missing_program_fails_when_it_is_required(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REQUIRE_REAL", "1")
    assert run(pytester) == ["1 passed, 2 failed"]


def test_without_the_option_no_summary_is_written(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(test_suite="def test_it(): pass")
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=1)
    assert not (pytester.path / "build").exists()


THROUGH_PROXIES = """
import pytest
from tests.support.configurations import CONFIGURATION

@pytest.mark.parametrize("name", ["a.conf", "a.conf", "b before a"])
def test_one(record_property, name): record_property(CONFIGURATION, name)

def test_wrong(record_property):
    record_property(CONFIGURATION, "a.conf")
    assert False
"""


def test_every_configuration_is_named(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(test_suite=THROUGH_PROXIES)
    lines = pytester.runpytest_inprocess("-q", "-p", "no:cacheprovider").outlines
    assert lines[lines.index("a.conf      2 passed, 1 failed") + 1] == "b before a  1 passed"


def test_no_configuration_is_named_without_a_proxy(pytester: pytest.Pytester) -> None:
    pytester.makeconftest(CONFTEST.read_text())
    pytester.makepyfile(test_suite="def test_it(): pass")
    assert "real proxies" not in pytester.runpytest_inprocess("-p", "no:cacheprovider").stdout.str()


def test_what_was_imported_and_collected_is_no_work_for_the_collections_of_garbage_in_tests() -> None:
    gc.collect()
    assert gc.get_freeze_count() > len(gc.get_objects())
