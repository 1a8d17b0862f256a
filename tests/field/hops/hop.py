"""An intermediary of the field: a program that is put in front of a port, and listens at a port of its own."""

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from string import Template

from tests.real.servers import IsUp, MakeCommand, Server, start_server

__all__ = ["CONFIG", "Ground", "Hop", "fill", "run_program", "write_config"]

CONFIG = Path(__file__).parents[1] / "config"


class _ConfigTemplate(Template):
    """A template with `@{name}` as placeholders, as in tests/real/config."""

    delimiter = "@"


@dataclass(frozen=True)
class Ground:
    """The things that are there when a hop is started: relays, their authority, and a directory all users may read."""

    directory: Path
    relays: tuple[int, ...]  # ports, plain HTTP
    ca: Path  # the authority that signed the certificate of the relay's TLS port


@dataclass(frozen=True)
class Hop:
    """An intermediary. `start(stack, ground, upstream)` puts it in front of that port and returns its own port.

    A hop with `is_proxy` is a forward proxy: the client names it with --proxy, and it finds the relay by the URL.
    `ca` is the authority that the client must trust instead of the relay's, if this hop decrypts TLS.
    """

    program: str
    start: Callable[[ExitStack, Ground, int], int]
    is_proxy: bool = False
    ca: Callable[[Path], Path] | None = None


def fill(template: str, **values: object) -> str:
    """Return a committed configuration with its `@{name}`s filled in. Raise KeyError if one has no value."""
    text = (CONFIG / template).read_text()
    return _ConfigTemplate(text).substitute({name: str(value) for name, value in values.items()})


def write_config(file: Path, text: str) -> Path:
    """Write a file that every user may read: some programs give up root."""
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)
    return file


def run_program(stack: ExitStack, make_command: MakeCommand, *, is_up: IsUp | None = None) -> Server:
    """Start a program that runs until the stack closes; then it gets SIGTERM before SIGKILL."""
    server = stack.enter_context(start_server(make_command, is_up=is_up))
    stack.callback(server.stop)
    return server
