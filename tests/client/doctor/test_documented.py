"""docs/DOCTOR.md shows the doctor's real output."""

from pathlib import Path

import pytest

from tests.client.doctor.scenes import SCENES, documented, normalised, said
from tests.client.rig import Rig


@pytest.mark.parametrize(
    "title", [pytest.param(title, marks=pytest.mark.real(*needs.split())) for title, (_, needs) in SCENES.items()]
)
def test_the_doctor_prints_the_documented_output(
    title: str, known: Rig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel_client.doctor.path_steps.LOAD_S", 0.2)
    monkeypatch.setattr("tunnel_client.doctor.trials.REQUESTS_S", 0.05)
    monkeypatch.delenv("TUNNEL_RELAY")
    code, text = said(SCENES[title][0], known, tmp_path)
    expected_code, expected = documented()[title]
    assert normalised(text) == normalised(expected)
    assert code == expected_code


def test_every_documented_output_is_tested() -> None:
    assert list(documented()) == list(SCENES)
