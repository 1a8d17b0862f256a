"""Which engine a command uses, and what it says where that engine cannot run."""

from __future__ import annotations

from pathlib import Path

import pytest

from tunnel.analysis.cli import main
from tunnel.analysis.engines.engine import DUCKDB, SPARK
from tunnel.analysis.engines.failures import SetupError
from tunnel.analysis.engines.launch import EMBEDDED_BYTES, engine_for
from tunnel.ground.exit_codes import USAGE

HERE = ["traces", "file:/traces/_tables"]
URI = ["hdfs://host/traces", "tables"]


@pytest.fixture(autouse=True)
def _not_under_submit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)


@pytest.mark.parametrize(
    ("wanted", "master", "places", "traces_bytes", "engine"),
    [
        ("", "", HERE, EMBEDDED_BYTES, DUCKDB),
        ("", "", HERE, EMBEDDED_BYTES + 1, SPARK),
        ("", "local[2]", HERE, 0, SPARK),
        ("", "", URI, 0, SPARK),
        ("", "", URI[::-1], 0, SPARK),
        (DUCKDB, "", HERE, EMBEDDED_BYTES + 1, DUCKDB),
        (SPARK, "", HERE, 0, SPARK),
    ],
)
def test_the_engine_suits_the_size_and_the_place(
    wanted: str, master: str, places: list[str], traces_bytes: int, engine: str
) -> None:
    assert engine_for(wanted, master, places, traces_bytes) == engine


def test_under_spark_submit_spark_is_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert engine_for("", "", HERE, 0) == SPARK


@pytest.mark.parametrize(("master", "places"), [("local", HERE), ("", URI), ("", URI[::-1])])
def test_duckdb_has_no_master_and_no_other_file_system(master: str, places: list[str]) -> None:
    with pytest.raises(SetupError, match="--engine duckdb"):
        engine_for(DUCKDB, master, places, 0)


def test_the_error_without_duckdb_says_what_to_install(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tunnel.analysis.engines.launch.find_spec", lambda name: None)
    assert main(["report", str(tmp_path)]) == USAGE
    assert "DuckDB is not installed: " in (error := capsys.readouterr().err)
    assert error.endswith("-m pip install duckdb\n")
