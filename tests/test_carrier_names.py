"""The names of the carriers stand in one module, and everything that goes through them uses it."""

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

from tests.carriers import harness
from tests.support.imports import project_files
from tunnel.carriers.links.openers import OPENERS
from tunnel.ground.carrier_names import CARRIERS, ROADS, CarrierName

ROOT = Path(__file__).resolve().parents[1]
HOME = "tunnel/ground/carrier_names.py"
# The carriers that have a step of their own in the doctor; each other one is tried by attaching with it.
EXCEPTIONS = {"client/tunnel_client/doctor/carrier_steps.py": 1}


def lists_of_carriers(source: str) -> Iterator[int]:
    """Yield the lines with a list of two carriers or more. A table that is complete, or fails, is no such list."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Tuple | ast.List | ast.Set):
            names = [part.value for part in node.elts if isinstance(part, ast.Constant) and part.value != ""]
            if len(names) > 1 and set(names) <= set(CARRIERS):
                yield node.lineno


def test_no_other_module_lists_the_carriers() -> None:
    found: dict[str, int] = {}
    for path in project_files(ROOT):
        if path.parts[0] in ("tunnel", "servlet", "client") and str(path) != HOME:
            count = len(list(lists_of_carriers((ROOT / path).read_text())))
            found |= {str(path): count} if count else {}
    assert found == EXCEPTIONS


def test_a_list_of_carriers_is_found() -> None:
    for source in ('("poll", "stream")', '["", "link", "auto"]', 'Literal["", "auto", "poll"]', '{"link", "poll"}'):
        assert list(lists_of_carriers(source)) == [1]
    for source in ('("poll",)', '("poll", "epoll")', '{"link": 1, "websocket": 2}', '("", "link")'):
        assert list(lists_of_carriers(source)) == []


def test_the_names_are_those_of_the_table() -> None:
    assert get_args(CarrierName) == tuple(CARRIERS)


def test_a_road_can_be_opened_and_be_asked_for_alone() -> None:
    assert set(OPENERS) == set(ROADS)
    for road in ROADS:
        assert CARRIERS[road].roads == (road,)


def test_each_carrier_is_tested_on_a_relay() -> None:
    assert {name.split()[0] for name in harness.CARRIERS} - {"memory"} == set(CARRIERS) - {"auto"}
