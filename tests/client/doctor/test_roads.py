"""The doctor says which road carries, what is remembered of the path, and forgets it when asked."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from tests.client.doctor.rig import doctor, hurting, quick
from tests.client.rig import Rig
from tunnel.exchange import RoadReport
from tunnel.road_memory import RoadMemory, local_network, path_name
from tunnel_client.cli.main import main
from tunnel_client.settings import road_memory_path

__all__ = ["doctor", "quick"]

FAILED = RoadReport("link", "resting", 3, "HTTP 404 instead of an upgrade: <no>\n link")


def remember(url: str, road: str, age_s: float = 0.0) -> RoadMemory:
    path = road_memory_path()
    assert path is not None
    memory = RoadMemory(path, lambda: time.time() - age_s)
    memory.keep(path_name(f"{url}/", None, local_network()), road, [FAILED])
    return memory


def test_the_best_road_that_works_is_chosen_and_remembered(known: Rig, doctor: Any) -> None:
    code, found, _ = doctor(known.url)
    assert code == 0
    assert found["roads"][0] == "ok"
    assert found["roads"][1].startswith("link carries, the best one that works; nothing is remembered of this path")
    assert found["roads"][2] == {"tried": ["link", "websocket"], "chosen": "link"}


@pytest.mark.parametrize(("age_s", "age"), [(60.0, "1 min"), (3 * 3600.0, "3 h")])
def test_the_memory_of_a_path_is_shown_with_its_age_and_its_reasons(
    known: Rig, doctor: Any, age_s: float, age: str
) -> None:
    url = hurting(known, no_upgrade=True)
    remember(url, "poll", age_s)
    _, found, _ = doctor(url)
    assert found["roads"][1].startswith(
        "requests with streamed answers carry everything, because neither a link nor a websocket works; "
        f"{age} ago, poll carried (link: HTTP 404 instead of an upgrade: <no> link)"
    )
    assert (found["roads"][2]["chosen"], found["roads"][2]["remembered"]) == ("poll", "poll")


def test_a_carrier_that_was_asked_for_is_named(known: Rig, doctor: Any) -> None:
    _, found, _ = doctor(known.url, "--carrier", "websocket")
    assert found["roads"][1].startswith("websocket is used, because you have asked for it")


def test_the_doctor_forgets_a_path_when_asked(known: Rig, doctor: Any, capsys: pytest.CaptureFixture[str]) -> None:
    memory = remember(known.url, "poll")
    _, found, _ = doctor(known.url, "--forget")
    assert found["roads"][1].endswith("nothing is remembered of this path: ")
    assert main(["doctor", "--forget", "--watch", "0.3", "--relay", known.url]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"forgot what was learned of 0 paths ({memory.path})\n")


def test_a_memory_that_cannot_be_removed_is_explained(known: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    path: Path | None = road_memory_path()
    assert path is not None
    path.mkdir(parents=True)
    assert main(["doctor", "--forget", "--relay", known.url]) != 0
    assert f"{path} cannot be removed: " in capsys.readouterr().err
