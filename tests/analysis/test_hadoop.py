"""Traces and tables in file systems of Hadoop: HDFS, in Hadoop's own mini cluster, and viewfs as the default one.

The job runs once for each of the two, in a process of its own, because a session keeps its configuration.
"""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from tests.analysis.hadoop_job import EVENTS, Found
from tests.analysis.hdfs import is_fetched, mini_cluster

pytestmark = pytest.mark.timeout(1600)

JOB_S = 1500
CORE_SITE = """<configuration>
  <property><name>fs.defaultFS</name><value>viewfs://cluster/</value></property>
  <property><name>fs.viewfs.mounttable.cluster.link./data</name><value>file://{directory}</value></property>
</configuration>
"""


def run(uri: str, directory: Path, **environment: str) -> Found:
    command = [sys.executable, "-m", "tests.analysis.hadoop_job", uri, str(directory)]
    # executors need no Python: a job in which one starts Python fails
    changed = {**os.environ, "PYSPARK_PYTHON": "/nonexistent", **environment}
    done = subprocess.run(command, capture_output=True, text=True, timeout=JOB_S, env=changed)
    assert done.returncode == 0, done.stderr[-4000:]
    return msgspec.json.decode((directory / "found.json").read_bytes(), type=Found)


@pytest.fixture(scope="module")
def of_viewfs(tmp_path_factory: pytest.TempPathFactory) -> Found:
    directory = tmp_path_factory.mktemp("viewfs")
    (directory / "mounted").mkdir()
    (directory / "core-site.xml").write_text(CORE_SITE.format(directory=directory / "mounted"))
    return run("viewfs://cluster/data", directory, HADOOP_CONF_DIR=str(directory))


@pytest.fixture(scope="module")
def of_hdfs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Found]:
    if not is_fetched():
        reason = "HDFS's mini cluster is missing (make hdfs-deps)"
        pytest.fail(reason, pytrace=False) if os.environ.get("REQUIRE_REAL") == "1" else pytest.skip(reason)
    directory = tmp_path_factory.mktemp("hdfs")
    with mini_cluster(directory) as uri:
        yield run(uri, directory)


@pytest.fixture(params=["viewfs", "hdfs"])
def found(request: pytest.FixtureRequest) -> Found:
    result = request.getfixturevalue(f"of_{request.param}")
    assert isinstance(result, Found)
    return result


def test_a_plain_path_is_one_of_this_machine_whatever_the_default_file_system_is(of_viewfs: Found) -> None:
    assert of_viewfs.default == "viewfs://cluster/"
    assert of_viewfs.local == EVENTS


def test_each_event_is_added_once(found: Found) -> None:
    assert (found.first, found.again, found.more) == (EVENTS, EVENTS, EVENTS + 1)
    assert found.commits == ["00000001.json", "00000002.json"]
    assert found.left == []


def test_files_are_found_below_the_folder_and_named_with_their_problems(found: Found) -> None:
    assert sorted(found.problems) == [
        ["_left", "open"],
        ["cut.jsonl.zst", "duplicate"],
        ["new.jsonl", ""],
        ["node=7/two ä%41 [b]*?{c,d}.jsonl", ""],
        ["one", ""],
        ["unpacked.jsonl", "duplicate"],
    ]
    assert [name.partition("-")[0] for name in found.sources] == [
        "new.jsonl", "node=7/two ä%41 [b]*?{c,d}.jsonl", "one",
    ]  # fmt: skip
    assert not any("_tables" in name for name in found.names)


def test_a_second_command_is_refused_and_told_which_one_is_the_first(found: Found) -> None:
    assert found.errors["second"].startswith("LedgerError: another command is adding to the tables in ")
    assert "(process " in found.errors["second"] or "it has not written its name yet" in found.errors["second"]
    assert "a lock that is not renewed ends in " in found.errors["second"]


def test_a_lock_is_renewed_and_ends_when_it_is_not(found: Found) -> None:
    assert found.renewals >= 2
    assert "(process 7 on elsewhere; " in found.errors["killed"]
    assert found.fenced


def test_errors_are_those_of_python_or_of_the_project_and_have_one_line(found: Found) -> None:
    assert "is not a directory" in found.errors["no such folder"]
    assert found.errors["no such file system"].startswith("UnusableError: nothing://here/traces cannot be used (")
    assert found.errors["exists"].startswith("FileExistsError: ")
    assert found.errors["record exists"].startswith("FileExistsError: ")
    assert found.errors["missing"].startswith("FileNotFoundError: ")
    assert not any("\n" in error for error in found.errors.values())


def test_the_command_takes_a_uri(found: Found) -> None:
    code, output = found.command
    assert code == "0"
    assert len(json.loads(output.splitlines()[-1])["files"]) == 6
