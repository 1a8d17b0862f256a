"""A proxy that demands authentication as real ones do (Basic, Digest, NTLM), and admits clients with the password."""

import asyncio
import base64
import contextlib
import hashlib
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

import pytest

from tests.support.proxies import UpstreamProxy, splice

__all__ = ["PASSWORD", "USER", "AskingProxy", "Basic", "Digest", "Guard", "Ntlm", "Unknown"]

USER, PASSWORD = "me", "s3cret päss%@"


class Guard(Protocol):
    """Decides whether a request may pass; once one has passed, the proxy judges no later request of its connection."""

    def judge(self, method: str, uri: str, header: str) -> list[str] | None:
        """Return None to admit the request, else the challenges: one for each Proxy-Authenticate header."""


class Basic:
    def judge(self, method: str, uri: str, header: str) -> list[str] | None:
        if header == "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode():
            return None
        return ['Basic realm="test, of course", charset="UTF-8"']


class Unknown:
    def judge(self, method: str, uri: str, header: str) -> list[str] | None:
        return ["Pigeon loft=7"]


class Digest:
    """Accepts each nonce at most `uses` times; offers Basic as well, which a client must not choose."""

    def __init__(self, algorithm: str = "", qop: str = "auth", uses: int = 1000) -> None:
        self.algorithm, self.qop, self.uses = algorithm, qop, uses
        self.nonces: dict[str, int] = {}
        self.stale = 0

    def judge(self, method: str, uri: str, header: str) -> list[str] | None:
        found = dict(re.findall(r'(\w+)="?((?<==")[^"]*|[^",]*)', header.removeprefix("Digest ")))
        assert not header.startswith("Basic"), "the client chose the weaker scheme"
        left = self.nonces.get(found.get("nonce", ""), 0)
        if header and found["response"] == self._response(method, uri, found):
            if left:
                self.nonces[found["nonce"]] = left - 1
                return None
            self.stale += 1
        nonce = os.urandom(8).hex()
        self.nonces[nonce] = self.uses
        text = f'Digest realm="a \\"real\\" realm", nonce="{nonce}", opaque="x"'
        text += f", algorithm={self.algorithm}" if self.algorithm else ""
        text += f', qop="auth-int,{self.qop}"' if self.qop else ""
        text += ", stale=true" if header and not left else ""
        return [f'{text}, Basic realm="weak"']

    def _response(self, method: str, uri: str, found: dict[str, str]) -> str:
        name = self.algorithm.removesuffix("-sess").replace("-", "").lower() or "md5"

        def h(text: str) -> str:
            return hashlib.new(name, text.encode()).hexdigest()

        assert found["uri"] == uri
        first = h(f'{USER}:a "real" realm:{PASSWORD}')
        if self.algorithm.endswith("-sess"):
            first = h(f"{first}:{found['nonce']}:{found['cnonce']}")
        middle = f"{found['nc']}:{found['cnonce']}:{found['qop']}:" if self.qop else ""
        return h(f"{first}:{found['nonce']}:{middle}{h(f'{method}:{uri}')}")


class Ntlm:
    """NTLM or Negotiate (`scheme`), with pyspnego on the proxy's side, too."""

    def __init__(self, scheme: str) -> None:
        import spnego

        self.scheme = scheme
        self._speaker = spnego.server(protocol=scheme.lower())

    @staticmethod
    def know_the_user(monkeypatch: pytest.MonkeyPatch, directory: Path) -> None:
        """Make USER and PASSWORD known to NTLM in this process until the test ends."""
        file = directory / "ntlm-users"
        file.write_text(f":{USER}:{PASSWORD}\n")
        monkeypatch.setenv("NTLM_USER_FILE", str(file))

    def judge(self, method: str, uri: str, header: str) -> list[str] | None:
        scheme, _, text = header.partition(" ")
        if scheme != self.scheme:
            return [self.scheme]
        try:
            said = self._speaker.step(base64.b64decode(text))
        except Exception:  # a wrong password
            return [self.scheme]
        if self._speaker.complete:
            return None
        return [f"{self.scheme} {base64.b64encode(said or b'').decode()}"]


class AskingProxy(UpstreamProxy):
    """`make_guard()` is called for each connection. `headers`: the Proxy-Authorization of each request, or ""."""

    def __init__(self, make_guard: Callable[[], Guard], tls: Any = None) -> None:
        super().__init__()
        self.headers: list[str] = []
        self._make_guard = make_guard
        self._tls = tls

    async def __aenter__(self) -> "AskingProxy":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0, ssl=self._tls)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        guard = self._make_guard()
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                self.heads.append(head)
                method, uri, _ = head.decode().split(" ", 2)
                found = re.search(r"(?im)^Proxy-Authorization: (.*)\r$", head.decode())
                header = found[1] if found else ""
                self.headers.append(header)
                asked = guard.judge(method, uri, header)
                if asked is None:
                    break
                length = re.search(rb"(?i)\r\nContent-Length: (\d+)", head)
                await reader.readexactly(int(length[1]) if length else 0)
                lines = [f"Proxy-Authenticate: {text}" for text in asked]
                answer = ["HTTP/1.1 407 Who are you", "Content-Length: 5", *lines, "", "never"]
                writer.write("\r\n".join(answer).encode())
            host, port = urlsplit(uri if "://" in uri else f"//{uri}").netloc.rsplit(":", 1)
            far_reader, far_writer = await asyncio.open_connection(host, int(port))
            with contextlib.closing(far_writer):
                if method == "CONNECT":
                    writer.write(b"HTTP/1.1 200 Connected\r\n\r\n")
                else:
                    far_writer.write(head)
                await asyncio.gather(splice(reader, far_writer), splice(far_reader, writer))
