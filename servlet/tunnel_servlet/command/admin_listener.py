"""Asks the admin listener of a running relay on this machine, for the commands of the operator."""

import argparse
import contextlib
import http.client
import socket
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import msgspec
from msgspec.structs import replace

from tunnel import UnreachableError
from tunnel.process.command_line import show_json
from tunnel_servlet.command.files import DEFAULT_FILE, config_file, load_config
from tunnel_servlet.config import ConfigError, ListenAddress, parse_listen
from tunnel_servlet.web.operator_access import ADMIN_HEADER

__all__ = ["admin_of", "ask", "ask_and_wait", "ask_any", "read_answer", "show_answer"]

_ANSWER_S = 5.0  # time for the admin listener to answer
_KICKED_S = 120.0  # the same when it has to end much first: 5,000 connections took 3 s on a busy machine
_ANSWER_BYTES_MAX = 1 << 24
_ANY = {"0.0.0.0": "127.0.0.1", "::": "::1"}
_Answer = TypeVar("_Answer")


class _UnixConnection(http.client.HTTPConnection):
    """A connection whose host is the path of a Unix socket."""

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self.host)


def ask(address: ListenAddress, secret: str, method: str, path: str, expected: int = 200) -> bytes:
    """Return the body of the answer. Raise an error with advice if its status is not the expected one."""
    status, body = ask_any(address, secret, method, path)
    _require_status(address, status, body, is_right=status == expected)
    return body


def ask_any(address: ListenAddress, secret: str, method: str, path: str) -> tuple[int, bytes]:
    """Return the status and the body of the answer."""
    with _asked(address, secret, method, path, _KICKED_S if method == "DELETE" else _ANSWER_S) as (_, answer):
        return answer.status, answer.read(_ANSWER_BYTES_MAX)


def ask_and_wait(
    address: ListenAddress, secret: str, path: str, seconds: float | None, begun: Callable[[], None]
) -> bytes:
    """Post a request whose answer ends when the work is done: call `begun` when it begins, and return its body.

    The body is empty if the relay ends without it, or after these seconds. Raise an error with advice if the status is
    not the expected one.
    """
    with _asked(address, secret, "POST", path, _ANSWER_S) as (asked, answer):
        is_right = answer.status in (200, 202)
        _require_status(address, answer.status, b"" if is_right else answer.read(_ANSWER_BYTES_MAX), is_right=is_right)
        begun()
        try:
            asked.settimeout(seconds)
            return answer.read(_ANSWER_BYTES_MAX) if answer.status == 200 else b""
        except (OSError, http.client.HTTPException):
            return b""


def _require_status(address: ListenAddress, status: int, body: bytes, *, is_right: bool) -> None:
    if not is_right:
        text = body[:1000].decode(errors="replace").strip()
        raise ConfigError(text if status == 400 else f"{address} answered {status}: {text}")


@contextlib.contextmanager
def _asked(
    address: ListenAddress, secret: str, method: str, path: str, seconds: float
) -> Iterator[tuple[socket.socket, http.client.HTTPResponse]]:
    kind = _UnixConnection if address.is_unix else http.client.HTTPConnection
    connection = kind(address.host, address.port, timeout=seconds)
    try:
        connection.request(method, path, headers={"Host": "localhost", ADMIN_HEADER: "" if address.is_unix else secret})
        asked = connection.sock  # kept, for the connection drops it when its last answer begins
        yield asked, connection.getresponse()
    except (OSError, http.client.HTTPException) as error:
        if isinstance(error, PermissionError):
            raise ConfigError(
                f"{address}: only the user who runs the relay may use it: run this as that user"
            ) from None
        text = f"no relay answers at {address}: {error}: is it running, and is this its admin listener?"
        raise UnreachableError(text) from None
    finally:
        connection.close()


def read_answer(address: ListenAddress, body: bytes, kind: type[_Answer]) -> _Answer:
    """Return what an answer in JSON holds. Raise ConfigError if it is something else."""
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.ValidationError as error:
        text = f"{address} answered something unknown to this command: {error}: are relay and command of one version?"
        raise ConfigError(text) from None
    except msgspec.DecodeError:
        raise ConfigError(f"{address} answered something other than JSON: is this the admin listener?") from None


def show_answer(address: ListenAddress, body: bytes) -> None:
    """Print an answer in JSON."""
    show_json(read_answer(address, body, Any), is_indented=True)


def admin_of(arguments: argparse.Namespace) -> tuple[ListenAddress, str]:
    """Return the address at which this machine reaches the admin listener, and the secret to show there."""
    file = config_file(arguments)
    config = load_config(file)
    address = config.admin
    if arguments.admin:
        try:
            address = parse_listen(arguments.admin)
        except ValueError as error:
            raise ConfigError(f"--admin: {error}") from None
    if address is None:
        how = f"{file} has none" if file else f"there is no {DEFAULT_FILE} here: name the relay's configuration with -c"
        advice = "set admin there, or name the address with --admin" if file else "or the address with --admin"
        raise ConfigError(f"no admin listener is known: {how}{': ' if file else ', '}{advice}")
    if address.host in _ANY:
        address = replace(address, host=_ANY[address.host])
    if not address.is_loopback:  # the secret would cross a network unencrypted, and the relay would not accept it
        raise ConfigError(
            f"{address} is not an address of loopback, and the admin secret is sent nowhere else: let admin listen on "
            "127.0.0.1 or 0.0.0.0, and run this command on the relay's machine; or send SIGTERM to the relay"
        )
    return address, config.admin_secret
