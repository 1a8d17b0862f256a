"""Local Unix sockets: their permission bits, and what a command does with a path that is in use."""

import os
import socket
import stat
from pathlib import Path

import pytest

from tunnel_client.errors import UsageError
from tunnel_client.forward.listening import address_of
from tunnel_client.forward.unix_sockets import bind_unix
from tunnel_client.places import Address, parse_address


def place(tmp_path: Path, name: str = "s") -> Address:
    return parse_address(f"unix:{tmp_path}/{name}")


def test_a_socket_belongs_to_its_owner_alone_and_is_removed_when_it_is_closed(tmp_path: Path) -> None:
    where = place(tmp_path)
    with bind_unix(where) as sock:
        assert stat.S_IMODE(os.stat(where.path).st_mode) == 0o600
        assert address_of(sock) == where
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(where.path)
    assert not os.path.exists(where.path)


def test_a_socket_has_the_permission_bits_that_were_asked_for(tmp_path: Path) -> None:
    where = place(tmp_path)
    with bind_unix(where, 0o660):
        assert stat.S_IMODE(os.stat(where.path).st_mode) == 0o660


def test_a_socket_on_which_nothing_listens_is_replaced(tmp_path: Path) -> None:
    where = place(tmp_path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(where.path)
    with bind_unix(where), socket.socket(socket.AF_UNIX) as client:
        client.connect(where.path)


def test_a_socket_on_which_something_listens_is_not_replaced(tmp_path: Path) -> None:
    where = place(tmp_path)
    with bind_unix(where), pytest.raises(UsageError, match="something listens there already: stop it"):
        bind_unix(where)


def test_a_listener_with_a_full_backlog_is_not_replaced(tmp_path: Path) -> None:
    where = place(tmp_path)
    with socket.socket(socket.AF_UNIX) as other, socket.socket(socket.AF_UNIX) as client:
        other.bind(where.path)
        other.listen(0)
        client.connect(where.path)
        with pytest.raises(UsageError, match="something listens there already"):
            bind_unix(where)
        assert os.path.exists(where.path)


def test_a_file_that_is_no_socket_is_not_touched(tmp_path: Path) -> None:
    where = place(tmp_path)
    Path(where.path).write_text("precious")
    with pytest.raises(UsageError, match="a file that is no socket is there"):
        bind_unix(where)
    assert Path(where.path).read_text() == "precious"


def test_the_socket_of_another_user_is_not_touched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    where = place(tmp_path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(where.path)
    me = os.geteuid()
    monkeypatch.setattr(os, "geteuid", lambda: me + 1)
    with pytest.raises(UsageError, match="belongs to another user"):
        bind_unix(where)
    assert os.path.exists(where.path)


def test_a_link_to_a_socket_is_not_followed(tmp_path: Path) -> None:
    target, where = place(tmp_path, "target"), place(tmp_path)
    with socket.socket(socket.AF_UNIX) as left:
        left.bind(target.path)
    os.symlink(target.path, where.path)
    with pytest.raises(UsageError, match="a file that is no socket is there"):
        bind_unix(where)
    assert os.path.exists(target.path)


def test_the_path_of_a_successor_is_left_alone(tmp_path: Path) -> None:
    where = place(tmp_path)
    first = bind_unix(where)
    os.unlink(where.path)
    with bind_unix(where):
        first.close()
        assert os.path.exists(where.path)


def test_a_folder_that_does_not_exist_is_explained(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="its folder does not exist: create the folder"):
        bind_unix(place(tmp_path, "missing/s"))
