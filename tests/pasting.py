"""Lets bash run what documents show, as a reader pastes it."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

__all__ = ["PROGRAM", "blocks", "pasted", "section"]

PASTE_S = 150
BLOCK = re.compile(r"^```\n(.*?)^```", re.MULTILINE | re.DOTALL)
PROGRAM = re.compile(r"^```python\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
# The ports of the README belong to the tests alone in a network of their own. A new one is down, also its loopback.
OWN_NETWORK = ("unshare", "--map-root-user", "--net")
WITH_LOOPBACK = (sys.executable, "-c", """
import fcntl, os, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as made:
    fcntl.ioctl(made, 0x8914, struct.pack("16sh14x", b"lo", 1))  # SIOCSIFFLAGS, IFF_UP
os.execvp(sys.argv[1], sys.argv[1:])
""")  # fmt: skip


def section(text: str, head: str) -> str:
    """Return the section of a document that has this heading."""
    return text.partition(f"{head}\n")[2].partition("\n## ")[0]


def blocks(text: str) -> list[str]:
    """Return the blocks of commands, without those of Python."""
    return BLOCK.findall(PROGRAM.sub("", text))


def pasted(text: str, folder: Path, seconds: float = PASTE_S) -> tuple[int, str]:
    """Let bash run the text in the folder with an empty home. Return the exit code and what was written, once all
    of its processes have ended."""
    isolated = shutil.which("unshare") and not subprocess.run([*OWN_NETWORK, "true"], capture_output=True).returncode
    if not isolated:
        for port in re.findall(r":(\d{4})\b", text):
            with socket.socket() as probe:
                if not probe.connect_ex(("127.0.0.1", int(port))):
                    pytest.skip(f"another program uses port {port}, and this machine gives no network of one's own")
    (folder / "home").mkdir()
    (folder / "work").mkdir()
    (folder / "paste.sh").write_text(f"{text}\nwait\n")
    with tempfile.TemporaryDirectory(prefix="q") as runtime, (folder / "said").open("w+") as said:
        environment = {
            "HOME": str(folder / "home"),
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "XDG_RUNTIME_DIR": runtime,
            "http_proxy": "http://127.0.0.1:9",  # those who need tunnel often have one
        }
        command = ["bash", "-e", str(folder / "paste.sh")]
        process = subprocess.Popen(
            [*OWN_NETWORK, *WITH_LOOPBACK, *command] if isolated else command,
            cwd=folder / "work", env=environment, stdin=subprocess.DEVNULL, stdout=said, stderr=said,
            start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        return code, (folder / "said").read_text()
