"""The settings of a session: those of the user decide."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import pytest
from pyspark import SparkContext

from tunnel.analysis.engines import session


class Builder:
    """Takes settings instead of Spark."""

    def __init__(self) -> None:
        self.settings: dict[str, str] = {}

    def appName(self, name: str) -> Self:
        return self

    def master(self, master: str) -> Self:
        self.settings["master"] = master
        return self

    def config(self, name: str, value: str) -> Self:
        self.settings[name] = value
        return self

    def getOrCreate(self) -> Any:
        class Session:
            class sparkContext:
                setLogLevel = staticmethod(lambda level: None)

        return Session


class Given:
    """The settings that spark-submit was given."""

    def getAll(self) -> list[tuple[str, str]]:
        return [("spark.sql.shuffle.partitions", "64")]


@pytest.fixture
def builder(monkeypatch: pytest.MonkeyPatch) -> Builder:
    made = Builder()
    monkeypatch.setattr(session, "SparkSession", type("SparkSession", (), {"builder": made}))
    monkeypatch.setattr(session, "SparkConf", Given)
    monkeypatch.setattr(SparkContext, "_ensure_initialized", lambda: None)  # it would connect to spark-submit
    return made


def test_under_spark_submit_a_setting_that_was_given_stays(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    session.make_session()
    assert "spark.sql.shuffle.partitions" not in builder.settings
    assert builder.settings["spark.sql.parquet.compression.codec"] == "zstd"
    assert "master" not in builder.settings


def test_java_asks_the_jars_with_most_classes_first(
    builder: Builder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "jars").mkdir()
    for name in ("a-1.jar", "spark-core_2.13-4.3.0.jar", "spark-sql-api_2.13-4.3.0.jar", "spark-sql_2.13-4.3.0.jar"):
        (tmp_path / "jars" / name).touch()
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    monkeypatch.setenv("SPARK_HOME", str(tmp_path))
    session.make_session()
    jars = [Path(path).name for path in builder.settings["spark.driver.extraClassPath"].split(":")]
    assert jars == ["spark-sql_2.13-4.3.0.jar", "spark-core_2.13-4.3.0.jar"]


def test_the_jars_of_the_installed_spark_are_found() -> None:
    jars = [Path(path) for path in session._jars_first().split(":")]
    assert len(jars) == len(session._JARS_FIRST)
    assert all(jar.is_file() for jar in jars)


def test_on_a_cluster_the_class_path_is_its_own(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    session.make_session("spark://host:7077", brief=True)
    assert "spark.driver.extraClassPath" not in builder.settings
    assert builder.settings["spark.sql.shuffle.partitions"] == "4"


def test_without_spark_submit_nobody_has_given_any(builder: Builder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_GATEWAY_PORT", raising=False)
    session.make_session()
    assert builder.settings["spark.sql.shuffle.partitions"] == "4"
    assert builder.settings["master"] == "local[*]"
