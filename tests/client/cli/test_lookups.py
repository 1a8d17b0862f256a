"""Name lookups of commands: a name server that never answers delays neither the first line nor the end of a command."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.client.rig import TOKEN
from tests.support.loops import in_loop
from tunnel_client.cli.lookups import client_loop, use_lookups
from tunnel_client.cli.main import main

_HANGS = "hangs.example"


class NameServer:
    """Never answers for one name, until `answers` is set."""

    def __init__(self) -> None:
        self.answers = threading.Event()
        self.asked = 0
        self._resolve: Callable[..., Any] = socket.getaddrinfo

    def getaddrinfo(self, host: Any, *arguments: Any, **options: Any) -> Any:
        if host != _HANGS:
            return self._resolve(host, *arguments, **options)
        self.asked += 1
        self.answers.wait()
        return self._resolve("127.0.0.1", *arguments, **options)


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    found = NameServer()
    monkeypatch.setattr(socket, "getaddrinfo", found.getaddrinfo)
    at_last = threading.Timer(60, found.answers.set)  # a command that waits for it then fails instead of hanging
    at_last.start()
    yield found
    at_last.cancel()
    found.answers.set()


@pytest.mark.parametrize("command", [["login"], ["forward", "0:a:1"], ["connect", "a:1"], ["proxy", "0"]])
def test_a_name_server_that_never_answers_holds_up_no_command(
    command: list[str],
    server: NameServer,
    home: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    file = home / "token"
    file.touch(0o600)
    file.write_text(TOKEN)
    url = f"https://{_HANGS}"
    monkeypatch.setenv("TUNNEL_TOKEN", TOKEN)
    words = ["login", url, "--token-file", str(file)] if command == ["login"] else [*command, "--relay", url]
    assert main([*words, "--wait", "3"]) == 3
    assert server.asked == 1
    assert not server.answers.is_set()
    assert f"at {url}" in capfd.readouterr().err


@in_loop
async def test_lookups_that_overlap_share_a_thread_and_outlive_a_caller(server: NameServer) -> None:
    loop = asyncio.get_running_loop()
    use_lookups(loop)
    first, second = (loop.create_task(loop.getaddrinfo(_HANGS, 80)) for _ in range(2))
    other = loop.create_task(loop.getaddrinfo(_HANGS, 443))
    await asyncio.sleep(0)
    first.cancel()
    server.answers.set()
    assert (await second)[0][4] == ("127.0.0.1", 80)
    assert (await other)[0][4] == ("127.0.0.1", 443)
    assert server.asked == 2
    assert await loop.getaddrinfo("127.0.0.1", 80, type=socket.SOCK_STREAM)


def test_an_error_reaches_the_caller_in_every_kind_of_loop() -> None:
    for make in (client_loop, asyncio.new_event_loop):
        with asyncio.Runner(loop_factory=make) as runner:
            use_lookups(runner.get_loop())
            with pytest.raises(socket.gaierror):
                runner.run(runner.get_loop().getaddrinfo("nowhere.invalid", 80))
