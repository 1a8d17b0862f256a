"""How paths are remembered: for a day, in a private file; an attachment does not fail because that file cannot be
used."""

from __future__ import annotations

import asyncio
import logging
import socket
import stat
from pathlib import Path

import pytest

from tests.carriers.rig import CountingRelay, moved_by, until
from tests.support.http_relay import token_of
from tests.support.loops import in_loop
from tunnel import attach
from tunnel.exchange import POLL, RoadReport
from tunnel.road_memory import RoadMemory, local_network, path_name

DAY_S = 24 * 3600.0


class Clock:
    def __init__(self) -> None:
        self.now_s = 1e9

    def __call__(self) -> float:
        return self.now_s


def test_a_path_is_remembered_for_a_day(tmp_path: Path) -> None:
    clock = Clock()
    memory = RoadMemory(tmp_path / "new" / "roads.json", clock)
    assert memory.recall("a") is None
    memory.keep("a", "websocket", [RoadReport("link", "resting", 2, "HTTP 404" + "x" * 500)])
    memory.keep("b", POLL, [])
    found = RoadMemory(memory.path, clock).recall("a")
    assert found is not None
    assert (found.road, found.at_s, found.roads[0].tries, len(found.roads[0].why)) == ("websocket", 1e9, 2, 200)
    assert stat.S_IMODE(memory.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(memory.path.parent.stat().st_mode) == 0o700
    clock.now_s += DAY_S - 1
    memory.keep("b", "link", [])
    clock.now_s += 1
    assert memory.recall("a") is None
    clock.now_s = 1e9  # a clock that was set back
    assert memory.recall("b") is None


def test_the_oldest_of_many_paths_are_dropped(tmp_path: Path) -> None:
    clock = Clock()
    memory = RoadMemory(tmp_path / "roads.json", clock)
    for number in range(105):
        clock.now_s += 1
        memory.keep(str(number), "link", [])
    assert [memory.recall(str(number)) is None for number in (0, 4, 5, 104)] == [True, True, False, False]
    assert memory.forget() == 100
    assert memory.forget() == 0
    assert not memory.path.exists()


@pytest.mark.parametrize(
    ("content", "mode", "why"),
    [
        (b"", 0o600, "truncated"),
        (b"{\xff", 0o600, "JSON|UTF"),
        (b'{"version": 2, "paths": {}}', 0o600, "version 2"),
        (b'{"version": 1, "paths": {"a": {"road": 5, "at_s": 1e9}}}', 0o600, "Expected `str`"),
        (b"x" * ((1 << 20) + 1), 0o600, "longer than"),
        (b'{"version": 1, "paths": {}}', 0o644, "open to other users"),
    ],
)
def test_a_file_that_cannot_be_used_is_ignored_with_a_warning(
    tmp_path: Path, content: bytes, mode: int, why: str, caplog: pytest.LogCaptureFixture
) -> None:
    memory = RoadMemory(tmp_path / "roads.json")
    memory.path.write_bytes(content)
    memory.path.chmod(mode)
    assert memory.recall("a") is None
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert any(word in record.getMessage() for word in why.split("|"))
    memory.keep("a", "link", [])
    assert memory.recall("a") is not None


def test_a_place_that_cannot_be_written_costs_only_the_memory(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    (tmp_path / "file").write_bytes(b"")
    memory = RoadMemory(tmp_path / "file" / "roads.json")
    memory.keep("a", "link", [])
    assert memory.recall("a") is None
    assert any("is not kept" in record.getMessage() for record in caplog.records if record.levelno == logging.INFO)


def test_a_symbolic_link_in_place_of_the_file_is_not_followed(tmp_path: Path) -> None:
    """Another user who may write in the directory cannot make us write elsewhere."""
    memory = RoadMemory(tmp_path / "roads.json")
    (tmp_path / "victim").write_bytes(b"precious")
    memory.path.symlink_to(tmp_path / "victim")
    memory.keep("a", "link", [])
    assert (tmp_path / "victim").read_bytes() == b"precious"


def test_the_name_of_a_path_tells_relay_proxy_and_network_apart() -> None:
    names = {
        path_name(relay, proxy, network)
        for relay in ("https://a", "https://b")
        for proxy in (None, "http://p:1")
        for network in ("", "10.0.0.0/24")
    }
    assert len(names) == 8
    assert path_name("HTTPS://A:443/", None, "") in names


def test_the_local_network_is_that_of_the_address_towards_the_internet(monkeypatch: pytest.MonkeyPatch) -> None:
    class Probe:
        def __init__(self, family: int, kind: int) -> None:
            self.family = family

        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *exception: object) -> None: ...

        def connect(self, address: tuple[str, int]) -> None:
            if self.family not in reachable:
                raise OSError("no route")

        def getsockname(self) -> tuple[str, int]:
            return ("10.1.2.3", 5) if self.family == socket.AF_INET else ("fe80::1:2%eth0", 5)

    monkeypatch.setattr(socket, "socket", Probe)
    for family, network in ((socket.AF_INET, "10.1.2.0/24"), (socket.AF_INET6, "fe80::/64"), (None, "")):
        reachable = {family}
        assert local_network() == network


# --- attachments


@in_loop
async def test_an_attachment_tries_the_road_that_carried_before_and_no_other(tmp_path: Path) -> None:
    async with CountingRelay("tunnel-link/1") as relay:
        memory = tmp_path / "roads.json"
        how = {"token": token_of("bob"), "proxy": None, "road_memory": memory}
        async with attach(relay.url, **how) as first:  # type: ignore[arg-type]
            await until(lambda: moved_by(first) == "websocket")
            assert [(road.name, road.state) for road in first.stats().roads][1] == ("websocket", "used")
            assert "HTTP 404" in first.stats().roads[0].why
        assert relay.asked[0] == "tunnel-link/1"
        relay.asked.clear()
        async with attach(relay.url, **how) as second:  # type: ignore[arg-type]
            await until(lambda: moved_by(second) == "websocket")
        assert relay.asked == ["websocket"]


@pytest.mark.parametrize("remembered", ["", "link", "websocket", POLL])
@in_loop
async def test_a_short_attachment_asks_for_one_road_at_most(tmp_path: Path, remembered: str) -> None:
    async with CountingRelay("tunnel-link/1", "websocket") as relay:
        memory = RoadMemory(tmp_path / "roads.json")
        if remembered:
            memory.keep(path_name(relay.url, None, local_network()), remembered, [])
        how = {"token": token_of("bob"), "proxy": None, "road_memory": memory.path}
        async with attach(relay.url, **how):  # type: ignore[arg-type]
            await asyncio.sleep(0.6)  # shorter than the first rest; at an age of 2 s, other roads are tried
        assert len(relay.asked) == (remembered != POLL)
        assert relay.asked in ([], ["websocket"] if remembered == "websocket" else ["tunnel-link/1"])
