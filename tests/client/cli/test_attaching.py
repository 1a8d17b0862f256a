"""The start of a command behind a login page: an error that names the page, or a wait until the page is gone."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import math
import subprocess
from pathlib import Path

import pytest

from tests.client.rig import TOKEN, Rig, connect, greet
from tests.support.hurried_loop import hurried
from tests.support.proxies import splice
from tunnel.driver import Driver
from tunnel_client.cli.attaching import add_wait_option, told_of_waiting
from tunnel_client.cli.main import main

REDIRECT = b"HTTP/1.1 302 Found\r\nLocation: http://portal.example/sign-in\r\nContent-Length: 0\r\n"
HTML = b"<!DOCTYPE html>\n<html><head><title>Hotel\n sign-in</title></head></html>"
PAGE = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n" % len(HTML)
PAGES = {
    "a redirect": (REDIRECT, b"", "it leads to http://portal.example/sign-in"),
    "a page": (PAGE, HTML, "the page 'Hotel sign-in'"),
}
every_page = pytest.mark.parametrize("page", PAGES)
FOR_EVER = 1 << 30


class Portal:
    """Answers the first `pages` requests with a login page, and leads later connections to the relay."""

    def __init__(self, rig: Rig, page: str, pages: int) -> None:
        self.left = pages
        self._answer = PAGES[page]
        self._relay = rig.running.addresses[0]
        self.url = f"http://127.0.0.1:{rig.serve(self._serve)}"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            if self.left:
                self.left -= 1
                await reader.readuntil(b"\r\n\r\n")
                head, body, _ = self._answer
                writer.write(head + b"Connection: close\r\n\r\n" + body)
                await writer.drain()
                return
            far_reader, far_writer = await asyncio.open_connection(self._relay.host, self._relay.port)
            with contextlib.closing(far_writer):
                await asyncio.gather(splice(reader, far_writer), splice(far_reader, writer))


@pytest.mark.parametrize("command", [["connect", "a:1"], ["forward", "0:a:1"], ["proxy", "0"], ["login"]])
@every_page
def test_without_wait_a_login_page_is_an_error_that_names_it(
    page: str, command: list[str], known: Rig, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    portal = Portal(known, page, FOR_EVER)
    if command == ["login"]:
        file = home / "token"
        file.touch(0o600)
        file.write_text(TOKEN)
        assert main(["login", portal.url, "--token-file", str(file)]) == 3
    else:
        assert main([*command, "--relay", portal.url]) == 3
    text = capsys.readouterr().err
    assert "but not from a relay (it may be a login or block page: open the relay's URL in a browser)" in text
    assert PAGES[page][2] in text
    assert "sign in there and try again, or give --wait SECONDS to try for longer" in text


@pytest.mark.parametrize("wait", [["--wait", "60"], ["--wait"]])
@every_page
def test_with_wait_the_command_tries_until_the_page_is_gone(page: str, wait: list[str], rig: Rig, home: Path) -> None:
    portal = Portal(rig, page, FOR_EVER)
    target = f"127.0.0.1:{rig.serve(greet)}"
    with connect(rig, target, "--relay", portal.url, *wait, stdin=subprocess.DEVNULL) as child:
        assert child.stderr is not None
        line = child.stderr.readline().decode().rstrip()
        portal.left = 0
        out, rest = child.communicate(timeout=60)
    assert (child.returncode, out, rest) == (0, b"hello\n", b"")
    assert line.startswith(f"tunnel: no relay answers yet at {portal.url} (HTTP ")
    assert PAGES[page][2] in line
    assert line.endswith(f"): trying {'for up to 60 s' if wait[1:] else 'until a relay answers'} (Ctrl-C ends)")


@pytest.mark.parametrize("command", [["login", "{url}", "--token-file", "{file}"], ["run", "true"]])
def test_a_command_that_the_relay_refuses_does_not_say_that_it_goes_on(
    command: list[str], known: Rig, home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    close = Driver.close

    async def close_slowly(driver: Driver) -> None:
        await asyncio.sleep(0.5)
        await close(driver)

    file = home / "token"
    file.touch(0o600)
    file.write_text(TOKEN[:-1])
    monkeypatch.setenv("TUNNEL_TOKEN", TOKEN[:-1])
    monkeypatch.setattr(Driver, "close", close_slowly)
    monkeypatch.setattr("tunnel_client.cli.commands.run.QUIET_S", 0.0)
    assert main([word.format(url=known.url, file=file) for word in command]) == 4
    said = capsys.readouterr().err
    assert "no such token" in said
    assert "still trying" not in said


def said_in(seconds: float) -> list[str]:
    """Return what is said while a command waits for so long for an answer, and knows from the start what is wrong."""
    said: list[str] = []

    async def wait() -> None:
        async with told_of_waiting(lambda: ("https://a", "HTTP 404"), "", lambda _, text: said.append(text)):
            await asyncio.sleep(seconds)

    hurried(wait())
    return said


def test_an_error_that_comes_at_once_is_not_said_twice() -> None:
    assert said_in(0.9) == []


@pytest.mark.parametrize(("ends_s", "lines"), [(5.2, 1), (15.2, 2), (30.2, 3)])
def test_no_command_says_that_it_goes_on_just_before_it_ends(ends_s: float, lines: int) -> None:
    """It ends after 5 s if the host cannot be reached, and after 15 or 30 s if nothing answers."""
    assert said_in(ends_s) == said_in(ends_s - 3)
    assert said_in(ends_s)[0] == "no relay answers yet at https://a (HTTP 404): still trying"
    assert len(said_in(ends_s)) == lines


@every_page
def test_a_wait_ends_after_its_seconds(page: str, known: Rig, capsys: pytest.CaptureFixture[str]) -> None:
    portal = Portal(known, page, FOR_EVER)
    assert main(["connect", "a:1", "--relay", portal.url, "--wait", "1.5"]) == 3
    text = capsys.readouterr().err
    assert "no relay answers at" in text
    assert PAGES[page][2] in text


@pytest.mark.parametrize(
    ("given", "seconds"),
    [
        ([], None),
        (["--wait", "0"], 0.0),
        (["--wait", "2.5"], 2.5),
        (["--wait"], math.inf),
        (["--wait", "forever"], math.inf),
    ],
)
def test_the_option_has_a_number_or_forever_or_stands_alone(given: list[str], seconds: float | None) -> None:
    parser = argparse.ArgumentParser()
    add_wait_option(parser, 30.0)
    assert parser.parse_args(given).wait == seconds


@pytest.mark.parametrize("text", ["x", "-1", "nan", "8080:reports"])
def test_a_wait_that_is_no_number_is_explained(text: str, capsys: pytest.CaptureFixture[str]) -> None:
    parser = argparse.ArgumentParser()
    add_wait_option(parser, 30.0)
    with pytest.raises(SystemExit):
        parser.parse_args([f"--wait={text}"])
    assert f"{text!r} is not a number of seconds: write --wait 60 or --wait forever" in capsys.readouterr().err
