"""A small web server over TLS for real HTTP clients: it stops in the middle of an answer when a test wants that, echoes
the bodies of POST requests, and hands /git/ to `git http-backend`."""

import http.server
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.real.clients_rig import LOOPBACK, WAIT_S
from tests.real.transfers import CA, MIB, noise

__all__ = ["LARGE", "HttpsServer", "https_server"]

LARGE = noise(2 * MIB, seed=6)  # the body of the answer to GET /large
_CERTIFICATE = Path(CA).parent / "server.pem"


class HttpsServer(http.server.ThreadingHTTPServer):
    """The server. `connections` counts the accepted connections; `projects` is the directory of the repositories."""

    daemon_threads = True

    def __init__(self, projects: Path) -> None:
        super().__init__((LOOPBACK, 0), _Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_CERTIFICATE)
        self.projects = projects
        self.connections = 0
        self.halfway = threading.Event()  # the answer's first half was written
        self._may_end = threading.Event()
        self._may_end.set()
        self._context = context

    @property
    def url(self) -> str:
        """The URL of its root."""
        return f"https://{LOOPBACK}:{self.server_port}"

    def get_request(self) -> tuple[Any, Any]:
        sock, address = super().get_request()
        self.connections += 1
        sock.settimeout(WAIT_S)
        return self._context.wrap_socket(sock, server_side=True, do_handshake_on_connect=False), address

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignore errors: a client may leave whenever it likes."""

    @contextmanager
    def stopping_halfway(self) -> Iterator[None]:
        """Within the block, large answers pause after their first half, until `go_on`."""
        self.halfway.clear()
        self._may_end.clear()
        try:
            yield
        finally:
            self._may_end.set()

    def go_on(self) -> None:
        """Send the second halves."""
        self._may_end.set()

    def pause(self) -> None:
        """Pause in the middle of an answer if a test wants that."""
        self.halfway.set()
        self._may_end.wait(WAIT_S)


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: HttpsServer

    def do_GET(self) -> None:
        if self.path.startswith("/git/"):
            self._run_git(b"")
        elif self.path == "/large":
            self._answer(LARGE, may_stop=True)
        else:
            self._answer(f"{self.path}\n".encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path.startswith("/git/"):
            self._run_git(body)
        else:
            self._answer(body)

    def _answer(self, body: bytes, *, may_stop: bool = False, status: int = 200, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        half = len(body) // 2
        self.wfile.write(body[:half])
        if may_stop:
            self.server.pause()
        self.wfile.write(body[half:])

    def _run_git(self, body: bytes) -> None:
        """Run `git http-backend` by CGI (RFC 3875)."""
        path, _, query = self.path.removeprefix("/git").partition("?")
        variables = {
            "GIT_PROJECT_ROOT": str(self.server.projects),
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
            "REMOTE_USER": "ann",  # a push requires a user
        }
        done = subprocess.run(
            ["git", "http-backend"],
            input=body,
            stdout=subprocess.PIPE,
            env={**os.environ, **variables},
            timeout=WAIT_S,
            check=True,
        )
        head, _, answer = done.stdout.partition(b"\r\n\r\n")
        fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        status = int(fields.get("Status", "200").split()[0])
        self._answer(answer, may_stop=len(answer) > MIB, status=status, kind=fields.get("Content-Type", "text/plain"))

    def log_message(self, format: str, *arguments: Any) -> None:  # noqa: A002
        pass


@contextmanager
def https_server(projects: Path) -> Iterator[HttpsServer]:
    """Serve in threads until the end of the block."""
    with HttpsServer(projects) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server
        finally:
            server.go_on()
            server.shutdown()
            thread.join(WAIT_S)
