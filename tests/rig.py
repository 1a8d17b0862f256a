"""What several test files of this folder share: a stream of datagrams, TLS contexts, the list of compiled files."""

from __future__ import annotations

import ssl
import tomllib
from pathlib import Path

import pathspec

from tests.support.certificates import TLS
from tests.support.imports import project_files
from tunnel.streams.datagrams import Deframer
from tunnel.streams.splice import Side

__all__ = ["FILES", "HOOK", "ROOT", "Stream", "compiled_files", "contexts"]

ROOT = Path(__file__).parent.parent
HOOK = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"][
    "custom"
]


def compiled_files() -> list[Path]:
    included = pathspec.PathSpec.from_lines("gitignore", HOOK["include"])
    excluded = pathspec.PathSpec.from_lines("gitignore", HOOK["exclude"])
    return [path for path in project_files(ROOT) if included.match_file(path) and not excluded.match_file(path)]


FILES = compiled_files()


class Stream(Side):
    """The other side of the pair, in the place of a tunnel."""

    def __init__(self) -> None:
        super().__init__()
        self.written = bytearray()
        self.ends: list[str] = []

    @property
    def is_over(self) -> bool:
        return False

    def write(self, data: bytes) -> bool:
        self.written += data
        return True

    def close(self) -> None:
        self.ends.append("closed")

    def abort(self) -> None:
        self.ends.append("aborted")

    def resume_reading(self) -> None:
        """Do nothing: there is nothing to read."""

    @property
    def datagrams(self) -> list[bytes]:
        return list(Deframer().feed(bytes(self.written)))


def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server.load_cert_chain(TLS / "server.pem")
    return server, ssl.create_default_context(cafile=str(TLS / "ca.pem"))
