"""The day of a laptop, with real processes: no trouble ends `tunnel up`; it says each time in a line what is wrong.

The laptop sleeps for longer than the user timeout. With the default (300 s) this would take minutes; here the
user timeout is 2 s. A proxy that asks for another password is believed after 3 s in place of a minute, which
tests/exchange checks.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
from pathlib import Path
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, says_event
from loadtests.harness.relays import RelayProcess
from tests.client.cli.commands.rig import target
from tests.client.cli.up.rig import LOOPBACK, ask, free_ports, private
from tests.client.rig import echo
from tests.support.loops import in_loop
from tests.support.proxies import UpstreamProxy

pytestmark = pytest.mark.usefixtures("home")

_WAIT_S = 60.0
_USER_TIMEOUT_S = 2
_TUNNEL = """
import sys
from tunnel.exchange.lanes import refusals
from tunnel_client.cli.main import main
assert refusals._ASKED_US == 60_000_000
refusals._ASKED_US = 3_000_000
sys.exit(main())
"""
_RELAY = """\
[relay]
url = "{url}"
proxy-file = "proxy.url"
token-file = "token"
user-timeout = {timeout}
[forward]
"""


class Laptop:
    """The process of `tunnel up`, its files, and the events that it has written so far."""

    def __init__(self, directory: Path, relay: RelayProcess, port: int) -> None:
        self.path = directory / "tunnel.toml"
        self._directory = directory
        self._head = _RELAY.format(url=relay.url, timeout=_USER_TIMEOUT_S)
        self._port = port
        self._seen = 0
        private(directory / "token", relay.tokens["client"])
        self.process = Process([sys.executable, "-c", _TUNNEL, "up", "-c", str(self.path), "--json"])

    def password(self, user: str) -> None:
        """Write the URL of the proxy with these credentials."""
        private(self._directory / "new.url", f"http://{user}@{LOOPBACK}:{self._port}").replace(
            self._directory / "proxy.url"
        )

    def entries(self, text: str) -> None:
        """Replace the file of `tunnel up` by one with these entries."""
        new = self.path.with_suffix(".new")
        new.write_text(self._head + text)
        new.replace(self.path)

    async def event(self, name: str, text: str = "") -> dict[str, Any]:
        """Wait for the next event with this name and text; it must be one line."""
        is_it = says_event(name)
        async with asyncio.timeout(_WAIT_S):
            while True:
                lines = self.process.output.splitlines()
                for number in range(self._seen, len(lines)):
                    if is_it(lines[number]) and text in lines[number]:
                        self._seen = number + 1
                        found: dict[str, Any] = json.loads(lines[number])
                        assert "\n" not in str(found.get("text"))
                        return found
                await asyncio.sleep(0.02)  # the lines come from another process


async def _answers(port: int) -> None:
    """Wait until a new connection through the port reaches the target. Some may fail while `tunnel up` recovers."""
    async with asyncio.timeout(_WAIT_S):
        while True:
            try:
                if await ask(port, b"hello") == b"hello":
                    return
            except ConnectionError:
                await asyncio.sleep(0.05)


@in_loop
async def test_the_day_of_a_laptop(tmp_path: Path) -> None:
    local, more = free_ports(2)
    with hold_port() as proxy_port, RelayProcess(inline_exit=True) as relay:
        laptop = Laptop(tmp_path, relay, proxy_port)
        async with target(echo) as port:
            one, two = f'one = "{local}:{LOOPBACK}:{port}"\n', f'two = "{more}:{LOOPBACK}:{port}"\n'
            laptop.password("me:old-secret")
            laptop.entries(one)
            async with laptop.process:
                # morning: no network yet, then there is one
                waiting = await laptop.event("waiting")
                assert "no relay answers" in waiting["text"]
                assert waiting["text"].endswith("trying again until one does")
                with pytest.raises(ConnectionRefusedError):
                    await ask(local, b"too early")
                async with UpstreamProxy(user="me:old-secret", port=proxy_port) as proxy:
                    await laptop.event("attached")
                    await laptop.event("listening", "forward one")
                    await _answers(local)
                    # the relay restarts
                    await relay.replace()
                    text = (await laptop.event("disconnected"))["text"]
                    assert "trying again until the relay answers; connections wait for up to 2 s" in text
                    await laptop.event("reconnected")
                    await _answers(local)
                    # the laptop sleeps, for longer than its connections last
                    laptop.process.signal(signal.SIGSTOP)
                    await asyncio.sleep(2 * _USER_TIMEOUT_S)
                    laptop.process.signal(signal.SIGCONT)
                    await _answers(local)
                    # the file changes three times: with a mistake, with a second entry, and without it again
                    laptop.entries(one + two.replace(LOOPBACK, "nowhere:"))
                    assert "forward two: " in (await laptop.event("not_reloaded"))["text"]
                    stays = await asyncio.open_connection(LOOPBACK, local)
                    laptop.entries(one + two)
                    assert "added: forward two" in (await laptop.event("reloaded"))["text"]
                    await laptop.event("listening", "forward two")
                    await _answers(more)
                    laptop.entries(one)
                    assert "removed: forward two" in (await laptop.event("reloaded"))["text"]
                    stays[1].write(b"still there")
                    assert await stays[0].readexactly(11) == b"still there"
                    # the proxy asks for another password, and goes on with that
                    proxy.demand("me:new-secret")
                    proxy.cut()
                    text = (await laptop.event("waiting", "407"))["text"]
                    assert "waiting for another user and password in " in text
                    assert str(tmp_path / "proxy.url") in text
                    tried = len(proxy.heads)
                    laptop.entries(one + two)  # the same password: it is not sent again
                    await laptop.event("reloaded", "added: forward two")
                    assert len(proxy.heads) == tried
                    assert "old-secret" not in laptop.process.output
                    laptop.password("me:new-secret")
                    await laptop.event("attached")
                    await _answers(local)
                    await _answers(more)
                    stays[1].transport.abort()
                    assert await asyncio.to_thread(laptop.process.stop) == 0


@pytest.mark.parametrize("stop", [signal.SIGTERM, signal.SIGINT])
@in_loop
async def test_a_signal_ends_tunnel_up_also_while_it_waits(stop: signal.Signals, tmp_path: Path) -> None:
    with hold_port() as proxy_port, RelayProcess() as relay:
        laptop = Laptop(tmp_path, relay, proxy_port)
        laptop.password("me:secret")
        laptop.entries('one = "0:reports"\n')
        async with laptop.process, UpstreamProxy(user="me:other", port=proxy_port):
            await laptop.event("waiting", "407")
            laptop.process.signal(stop)
            code = await asyncio.to_thread(laptop.process.wait, _WAIT_S)
            assert code == (0 if stop is signal.SIGTERM else 130)
