"""The first attachment of a process: its event loop does not wait for imports."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.client.sockets_rig import DEADLINE_S, RelayThread, relay_thread, run_python
from tunnel.ground.exit_codes import USAGE

# Attaches within an event loop, and prints the modules that each thread imported then.
ATTACHING = """
import asyncio, json, sys, threading
import tunnel

class Watch:
    imported = {True: [], False: []}

    def find_spec(self, name, path=None, target=None):
        self.imported[threading.current_thread() is threading.main_thread()].append(name)

async def main(url, token):
    sys.meta_path.insert(0, Watch())
    attachments = [tunnel.attach(url, token=token, proxy=None, name=name) for name in ("first", "second")]
    await asyncio.gather(*(each.start() for each in attachments))
    for each in attachments:
        await each.close()
    try:
        async with tunnel.attach("ftp://nowhere"):
            pass
    except ValueError as error:
        Watch.imported["error"] = str(error)
    print(json.dumps({str(key): value for key, value in Watch.imported.items()}))

asyncio.run(main(*sys.argv[1:]))
"""
# What the loop may import: modules that themselves import nothing that takes time.
QUICK = {"tunnel.attaching", "tunnel.attachment", "tunnel.ground"} | {
    f"tunnel.ground.{name}" for name in "carrier_names carrier_limits defaults relay_options unused".split()
}


@pytest.fixture(scope="module")
def relay() -> Iterator[RelayThread]:
    with relay_thread() as relay:
        yield relay


def test_the_first_attachment_imports_what_it_needs_in_another_thread(relay: RelayThread) -> None:
    imported = json.loads(run_python(relay, ATTACHING, relay.url, relay.token).stdout)
    ours = {name for name in imported["True"] if name.partition(".")[0] in ("tunnel", "aiohttp", "cryptography")}
    assert ours <= QUICK
    assert {"aiohttp", "tunnel.carriers.roads", "tunnel.core", "tunnel.encryption"} <= set(imported["False"])
    assert imported["error"].startswith("'ftp://nowhere' is not a relay URL")


def test_a_first_attachment_with_a_wrong_argument_raises_when_it_is_started(relay: RelayThread) -> None:
    code = """
import asyncio, sys
import tunnel

async def main():
    attachment = tunnel.attach("ftp://nowhere")
    assert "aiohttp" not in sys.modules
    for _ in range(2):
        try:
            await attachment.start()
        except ValueError as error:
            print(error)

asyncio.run(main())
"""
    lines = run_python(relay, code).stdout.splitlines()
    assert len(lines) == 2
    assert all(line.startswith("'ftp://nowhere' is not a relay URL") for line in lines)


@pytest.mark.parametrize(
    "command",
    [
        ["tunnel_client", "connect", "--relay", "ftp://nowhere", "db:5432"],
        ["tunnel_servlet", "exit", "--relay", "ftp://nowhere", "--allow", "127.0.0.1:1", "--token-file", "token"],
    ],
    ids=["tunnel connect", "tunnel-relay exit"],
)
def test_a_command_reports_a_wrong_argument_of_its_first_attachment_in_a_line(
    relay: RelayThread, tmp_path: Path, command: list[str]
) -> None:
    token = tmp_path / "token"
    token.write_text(relay.token)
    token.chmod(0o600)
    words = [str(token) if word == "token" else word for word in command]
    done = subprocess.run(
        [sys.executable, "-m", *words],
        capture_output=True,
        text=True,
        env=relay.environment,
        cwd=tmp_path,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == USAGE
    (line,) = done.stderr.splitlines()
    assert "'ftp://nowhere' is not a relay URL" in line
