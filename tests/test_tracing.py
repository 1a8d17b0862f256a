"""How a program opens a trace."""

from pathlib import Path

import pytest

import tunnel
from tunnel.traces import TraceLevel
from tunnel.tracing import LEVELS, open_trace


def test_a_trace_is_opened_at_a_level(tmp_path: Path) -> None:
    with tunnel.open_trace(tmp_path / "x", "connection", name="mine") or pytest.fail("no trace") as trace:
        assert trace.level is TraceLevel.CONNECTION
        assert trace.writer.startswith("mine-")
    assert (tmp_path / "x").is_dir()


def test_the_level_off_writes_no_trace_and_creates_no_files(tmp_path: Path) -> None:
    assert open_trace(tmp_path / "x", "off") is None
    assert not (tmp_path / "x").exists()


def test_an_unknown_level_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="off, connection, packet"):
        open_trace(tmp_path, "everything")
    assert LEVELS == ("off", "connection", "packet")
