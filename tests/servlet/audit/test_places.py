"""Syslog and standard output get each line once, also after errors."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from tunnel_servlet.audit.files import AuditFile
from tunnel_servlet.audit.places import StreamPlace, SyslogPlace
from tunnel_servlet.audit.trail import open_place
from tunnel_servlet.settings import AuditSettings

LINES = b'{"event":"admin","act":"a"}\n{"event":"admin","act":"b"}\n'
AUTHPRIV_INFO = b"<86>"  # 10 * 8 + 6, RFC 5424


def received(server: socket.socket, count: int) -> list[bytes]:
    server.settimeout(30)
    return [server.recv(4096).rstrip(b"\0") for _ in range(count)]


def test_each_line_is_one_message_to_the_socket_of_syslog(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(str(tmp_path / "log"))
        place = open_place(AuditSettings(to="syslog", syslog=str(tmp_path / "log")))
        place.write(LINES)
        first, second = received(server, 2)
        place.close()
    assert first == AUTHPRIV_INFO + b'tunnel-relay: {"event":"admin","act":"a"}'
    assert second.endswith(b'"act":"b"}')


def test_syslog_by_udp_gets_the_same(tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        place = SyslogPlace(f"127.0.0.1:{server.getsockname()[1]}")
        place.write(LINES)
        assert len(received(server, 2)) == 2
        place.close()


def test_after_syslog_was_away_each_line_comes_once(tmp_path: Path) -> None:
    path = str(tmp_path / "log")
    place = SyslogPlace(path)
    with pytest.raises(OSError, match="No such file"):
        place.write(LINES)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        place.write(LINES)
        assert len(received(server, 2)) == 2
        server.setblocking(False)
        with pytest.raises(BlockingIOError):
            server.recv(1)
    with pytest.raises(OSError, match="refused"):
        place.write(LINES)
    place.give_up()
    os.unlink(path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as server:
        server.bind(path)
        place.write(LINES)
        assert received(server, 2)[0].endswith(b'"act":"a"}')
    place.close()


def test_standard_output_gets_the_lines(capfd: pytest.CaptureFixture[str]) -> None:
    place = open_place(AuditSettings(to="stdout"))
    assert isinstance(place, StreamPlace)
    place.write(LINES)
    assert capfd.readouterr().out == LINES.decode()


def test_the_limits_of_the_settings_are_those_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    place = open_place(AuditSettings(file=str(path), file_bytes_max=1 << 16, files_max=2))
    assert isinstance(place, AuditFile)
    for _ in range(4):
        place.write(b"x" * 40_000 + b"\n")
    place.close()
    assert len(list(tmp_path.iterdir())) == 2
    assert len(place.removed) == 2
