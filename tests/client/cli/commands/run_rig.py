"""Runs `tunnel run` in a process of its own, and a web server that its programs may ask."""

from __future__ import annotations

import http.server
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tests.client.sockets_rig import DEADLINE_S, ROOT, Hello, RelayThread
from tunnel.ground.exit_codes import OK

__all__ = ["hello", "run"]


@contextmanager
def hello() -> Iterator[int]:
    """Run a web server; yield its port."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hello) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join(DEADLINE_S)


def run(
    relay: RelayThread,
    *command: str,
    hosts: str = "*.internal",
    expected: int = OK,
    options: Sequence[str] = (),
    **variables: str,
) -> subprocess.CompletedProcess[str]:
    """Run `tunnel run -- command`."""
    done = subprocess.run(
        [sys.executable, "-m", "tunnel_client", "run", *options, "--hosts", hosts, "--", *command],
        capture_output=True,
        text=True,
        env={**relay.environment, "PYTHONPATH": "", **variables},
        cwd=ROOT.parent,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == expected, done.stderr
    return done
