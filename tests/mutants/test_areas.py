"""Which modules and tests a word means."""

from pathlib import Path

import pytest

from tests.mutants.areas import LEFT_OUT, SWITCH, Module, choose, pytest_arguments

ROOT = Path(__file__).resolve().parents[2]


def test_a_word_is_an_area_or_a_module() -> None:
    assert choose(ROOT, ["core.rtt"]) == choose(ROOT, ["tunnel.core.rtt"]) == [Module("core", "rtt")]
    assert choose(ROOT, ["switch"]) == [Module("switch", stem) for stem in SWITCH]
    assert choose(ROOT, ["core.rtt", "core.rtt"]) == [Module("core", "rtt")]
    assert {module.area for module in choose(ROOT, [])} == {"core", "exchange", "switch"}


def test_an_unknown_word_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"no module core.nothing; as in: core, exchange.lanes"):
        choose(ROOT, ["core.nothing"])


def test_every_module_and_every_test_that_is_named_exists() -> None:
    for module in choose(ROOT, []):
        assert (ROOT / module.path).is_file(), module.name
    for path in LEFT_OUT:
        assert (ROOT / path).is_file(), path
    for argument in pytest_arguments(choose(ROOT, [])):
        assert (ROOT / argument.removeprefix("--ignore=")).exists(), argument


def test_a_module_has_names_and_tests_of_its_own() -> None:
    module = Module("switch", "routes")
    assert (module.name, module.dotted, str(module.path)) == ("switch.routes", "servlet.routes", "servlet/routes.py")
    assert module.own_tests == "tests/servlet/test_routes"
    assert pytest_arguments([module])[0] == "tests/servlet"
    assert pytest_arguments([Module("core", "rtt")])[:2] == ["tests/core", "tests/scripted/test_scripts.py"]
