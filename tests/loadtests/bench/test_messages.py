"""The benchmark of messages: a tiny run of every case over a link, and of one case through nginx."""

import json

import pytest

from loadtests.bench.messages.__main__ import main


def test_every_case_is_measured_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--carriers", "link", "--seconds", "0.1", "--count", "1000", "--callers", "4", "--mib", "2", "--json"]
    assert main(arguments) == 0
    rows = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["link: async, batches of 200, zstd"] > 0
    assert rows["calls, 4 callers on one connection"] > 0
    assert rows["link: broker, fetch"] > 0
    assert rows["link: broker, push from a memory topic, p99"] > 0
    assert rows["link: bare forwarder and echo, p99"] > 0
    assert rows["disk of the broker, fdatasync, p99"] > 0
    assert rows["2 MiB in one packet, from a file to the disk"] > 0


@pytest.mark.real("nginx")
def test_parts_of_a_broker_are_measured_through_nginx(capsys: pytest.CaptureFixture[str]) -> None:
    assert main("--cases fetch --carriers poll --nginx --count 1000 --json".split()) == 0
    rows = {row["name"]: row["value"] for row in json.loads(capsys.readouterr().out)}
    assert rows["poll: broker, fetch"] > 0
    assert not any("push" in name or "store" in name for name in rows)


def test_nginx_is_measured_with_poll_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main("--cases fetch --nginx".split())
    assert ended.value.code == 2
    assert "add --carriers poll" in capsys.readouterr().err
