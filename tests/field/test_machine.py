"""The programs of the rows: which are missing, and their versions."""

from pathlib import Path

import pytest

from tests.field import machine
from tests.field.machine import load_line, missing_programs, program_versions
from tests.field.rows import find_rows

ROWS = find_rows("caddy,chain,squid-bump,closes")


def test_missing_programs_are_named_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine, "find_program", lambda name: "/bin/true" if name == "caddy" else None)
    monkeypatch.setattr(machine, "BUMPING", tmp_path)
    assert missing_programs(ROWS) == ["apache2", "nginx", "squid-openssl", "varnishd"]


def test_a_program_is_listed_with_its_version_or_as_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    program = tmp_path / "program-9.9.9"
    program.write_text("#!/bin/sh\necho noise\necho $0: version 2.6.2-5 of >&2\n")
    program.chmod(0o755)
    monkeypatch.setattr(machine, "find_program", lambda name: str(program) if name == "caddy" else None)
    assert program_versions(find_rows("caddy")) == {"caddy": "2.6.2"}
    assert program_versions(find_rows("apache")) == {"apache2": "missing"}


def test_a_program_that_states_no_version_is_listed_as_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "find_program", lambda name: "/bin/true")
    assert program_versions(find_rows("varnish")) == {"varnishd": "unknown"}


def test_the_line_about_the_machine_names_processors_and_load() -> None:
    assert "processors, load average" in load_line()
