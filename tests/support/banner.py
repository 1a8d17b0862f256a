"""Servers for programs in other processes: one sends a line, one serves a page. Each runs in a thread, on loopback."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

__all__ = ["BANNER", "banner_server", "page_server"]

BANNER = b"SSH-2.0-test\r\n"


@contextmanager
def banner_server() -> Iterator[int]:
    """Send BANNER to each connection and close it; yields the port."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            with suppress(OSError):  # closing the server ends the loop
                while True:
                    connection, _ = server.accept()
                    with connection:
                        connection.sendall(BANNER)

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server.getsockname()[1]
        finally:
            server.shutdown(socket.SHUT_RDWR)
            thread.join()


class _Page(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"page")

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - as in the base class
        """Log nothing."""


@contextmanager
def page_server() -> Iterator[int]:
    """Serve a page of four bytes; yields the port."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_address[1]
        finally:
            server.shutdown()
            thread.join()
