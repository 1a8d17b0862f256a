"""Words on the command line of `tests.mutants` select modules and their tests."""

from pathlib import Path

import pytest

from tests.mutants.areas import LEFT_OUT, SINGLE, SOURCES, Module, choose, pytest_arguments

ROOT = Path(__file__).resolve().parents[2]
RTT = Module("core", "send.rtt")


def test_a_word_selects_an_area_a_folder_or_a_module() -> None:
    assert choose(ROOT, ["core.send.rtt"]) == choose(ROOT, ["tunnel.core.send.rtt"]) == [RTT]
    assert choose(ROOT, ["core.send.rtt", "core.send.rtt"]) == [RTT]
    send = choose(ROOT, ["core.send"])
    assert RTT in send
    assert {module.inner.partition(".")[0] for module in send} == {"send"}
    assert {module.area for module in choose(ROOT, ["switch"])} == {"switch"}
    assert {module.area for module in choose(ROOT, [])} == set(SOURCES)


def test_an_unknown_word_is_an_error() -> None:
    for word in ("core.nothing", "core.sen"):
        with pytest.raises(ValueError, match=rf"no module {word}; as in: core, core.send, exchange.lanes"):
            choose(ROOT, [word])


def test_all_named_modules_and_tests_exist() -> None:
    single = [module.name for module in choose(ROOT, []) if module.area in SINGLE]
    assert sorted(single) == sorted(f"{area}.{inner}" for area, inners in SINGLE.items() for inner in inners)
    for module in choose(ROOT, []):
        assert (ROOT / module.path).is_file(), module.name
    for path in LEFT_OUT:
        assert (ROOT / path).is_file(), path
    for argument in pytest_arguments(choose(ROOT, [])):
        assert (ROOT / argument.removeprefix("--ignore=")).exists(), argument


def test_a_module_has_names_and_tests_of_its_own() -> None:
    module = Module("switch", "routes.routes")
    assert (module.name, module.dotted, str(module.path)) == (
        "switch.routes.routes",
        "tunnel_servlet.switch.routes.routes",
        "servlet/tunnel_servlet/switch/routes/routes.py",
    )
    assert module.own_tests == "tests/servlet/switch/routes/test_routes"
    assert RTT.own_tests == "tests/core/send/test_rtt"
    assert pytest_arguments([module])[0] == "tests/servlet/switch"
    assert pytest_arguments([RTT])[:2] == ["tests/core", "tests/scripted/test_scripts.py"]
    single = Module("client", "forward.traffic")
    assert (single.dotted, single.own_tests) == (
        "tunnel_client.forward.traffic",
        "tests/client/forward/test_traffic",
    )
    assert pytest_arguments([single])[0] == "tests/client/forward/test_traffic.py"
