"""Runs `tunnel run` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence

from tests.client.sockets_rig import DEADLINE_S, ROOT, RelayThread
from tunnel.exit_codes import OK

__all__ = ["run"]


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
