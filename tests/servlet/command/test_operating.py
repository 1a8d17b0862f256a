"""The commands `tunnel-relay ps` and `kick`, against a relay in this process."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.servlet.rig import KEYS, TOKENS
from tests.servlet.web.live.rig import Opener, opener, reports
from tests.servlet.web.rig import SECRET
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import Attachment, ResetError, attach
from tunnel_servlet.command.files import load_config, write_users
from tunnel_servlet.command.main import main, make_parser
from tunnel_servlet.command.operating import TABLES
from tunnel_servlet.web.running import RunningRelay


class Operator:
    """Runs commands against one relay, and returns what they print."""

    def __init__(self, running: RunningRelay, file: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self._options = ["-c", str(file), "--admin", str(running.admin)]
        self._capsys = capsys

    async def run(self, *words: str) -> tuple[int, str, str]:
        self._capsys.readouterr()
        code = await asyncio.to_thread(main, [*words, *self._options])
        found = self._capsys.readouterr()
        return code, found.out, found.err

    async def ids(self, table: str = "connections") -> list[str]:
        _, out, _ = await self.run("ps", table, "--json")
        return [row["id"] for row in json.loads(out)["rows"]]


@asynccontextmanager
async def scene(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str = "desk"
) -> AsyncIterator[tuple[Operator, Attachment, int, Opener]]:
    """Run a relay, and attach ann to it; yield the operator, ann, the port of a target, and an opener."""
    file = tmp_path / "relay.toml"
    file.write_text(
        'listen = ["127.0.0.1:0"]\nadmin = "127.0.0.1:0"\ntokens = "keys.toml"\n'
        '[users.ann]\nconnect = ["127.0.0.0/8:*"]\nlisten = ["reports"]\n'
    )
    write_users(file.with_name("keys.toml"), {"ann": KEYS["ann"]}, SECRET)

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while chunk := await reader.read(1 << 16):
            writer.write(chunk)

    async with target(echo) as port, RunningRelay(load_config(str(file))) as running:
        url = f"http://{running.addresses[0]}"
        async with (
            attach(url, token=TOKENS["ann"], proxy=None, linger=0.1, name=name) as ann,
            opener() as opened,
        ):
            yield Operator(running, file, capsys), ann, port, opened


@in_loop
async def test_ps_prints_tables_for_people(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with scene(tmp_path, capsys) as (operator, ann, port, opened), reports(ann):
        await opened(ann, port, 3 << 20)
        code, out, err = await operator.run("ps")
        head, row = out.splitlines()
        assert head.split() == ["ID", "USER", "FROM", "TARGET", "STATE", "BY", "AGE", "UP", "DOWN", "WAITING"]
        assert row.split()[1:8] == ["ann", "desk", f"127.0.0.1:{port}", "bound", "inline", "of", "relay:exit"]
        assert row.split()[9:] == ["3", "MiB", "3", "MiB", "0", "B"]
        assert (code, err) == (0, "1 connection\n")
        for table, words in (
            ("attachments", ["exit", "service", "2 attachments"]),
            ("users", ["1 of 100", "1 of 4096", "1 user"]),
            ("services", ["reports", "0 of", "1 service"]),
        ):
            code, out, err = await operator.run("ps", table)
            assert code == 0
            assert [word for word in words if word not in out + err] == []


@in_loop
async def test_ps_says_how_much_it_does_not_show(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with scene(tmp_path, capsys) as (operator, ann, port, opened):
        assert (await operator.run("ps"))[1:] == ("", "there are no connections\n")
        for size in (7, 90_000, 8):
            await opened(ann, port, size)
        _, out, err = await operator.run("ps", "--sort", "bytes", "--limit", "1")
        assert "87.9 KiB" in out.splitlines()[1]
        assert err == "1 connection of 3 that match: --limit 3 shows more\n"
        assert "7 B" in (await operator.run("ps", "--sort", "bytes", "--limit", "1", "--reverse"))[1]
        assert (await operator.run("ps", "--find", "nothing"))[1:] == ("", "none of 3 connections matches\n")
        assert (await operator.run("ps", "attachments", "--user", "ann"))[2] == "1 attachment, of 2 in all\n"


@in_loop
async def test_ps_explains_a_wrong_order(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with scene(tmp_path, capsys) as (operator, *_):
        code, _, err = await operator.run("ps", "users", "--sort", "colour")
        assert (code, "sort is one of user, attachments, connections, held, bytes" in err) == (2, True)


@in_loop
async def test_hostile_names_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with scene(tmp_path, capsys, "\x1b[2J\r\nroot  all") as (operator, ann, port, opened):
        await opened(ann, port)
        _, out, _ = await operator.run("ps")
        assert len(out.splitlines()) == 2
        assert "\\x1b[2J\\r\\nroot  all" in out
        _, out, _ = await operator.run("ps", "--json")
        assert json.loads(out)["rows"][0]["endpoint"] == "\x1b[2J\r\nroot  all"


@in_loop
async def test_kick_ends_what_it_is_given_and_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with scene(tmp_path, capsys) as (operator, ann, port, opened):
        streams = [await opened(ann, port) for _ in range(4)]
        (first, second, *_) = await operator.ids()
        code, out, _ = await operator.run("kick", first)
        assert (code, out) == (
            0,
            f"ended connection {first}, which ann had opened to 127.0.0.1:{port}: both ends got a reset\n",
        )
        with pytest.raises(ResetError):
            await streams[0][0].read()
        code, out, err = await operator.run("kick", first)
        assert (code, out, err) == (6, "", f"there is no connection {first}: it has ended\n")
        code, out, _ = await operator.run("kick", second, "--json")
        assert json.loads(out) == {"connections": 1, "attachments": 0, "user": "ann", "name": f"127.0.0.1:{port}"}
        (attachment,) = [found for found in await operator.ids("attachments") if not found.startswith("a1-")]
        code, out, _ = await operator.run("kick", "--attachment", attachment)
        assert out == (
            f"ended attachment {attachment} and its 2 connections: the endpoint desk of ann may attach again\n"
        )
        await opened(ann, port)
        code, out, _ = await operator.run("kick", "--user", "ann")
        assert code == 0
        assert out == (
            "ended 1 attachment and 1 connection of ann, whose endpoints may attach again: "
            "`tunnel-relay user revoke ann` keeps them out\n"
        )


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        ([], 2, "name one thing to end: the id of a connection, --attachment ID or --user NAME"),
        (["c1-0000", "--user", "ann"], 2, "name one thing to end"),
        (["17"], 2, "'17' is not the id of a connection: one looks like c17-9f3a, and `tunnel-relay ps` shows it"),
        (["--attachment", "c1-0000"], 2, "is not the id of an attachment: one looks like a7-9f3a"),
        (["--user", "bob"], 6, "no endpoint of bob is attached"),
        (["--user", "relay:exit"], 6, "no endpoint of relay:exit is attached"),
    ],
)
@in_loop
async def test_kick_explains_what_it_cannot_end(
    words: list[str], code: int, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene(tmp_path, capsys) as (operator, *_):
        found, out, err = await operator.run("kick", *words)
        assert (found, out) == (code, "")
        assert text in err


@in_loop
async def test_a_part_of_the_relay_is_not_ended(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async with scene(tmp_path, capsys) as (operator, *_):
        own = next(found for found in await operator.ids("attachments") if found.startswith("a1-"))
        code, _, err = await operator.run("kick", "--attachment", own)
        assert (code, "it is a part of the relay" in err) == (5, True)


@pytest.mark.parametrize("words", [["ps"], ["kick", "c1-0000"]])
@in_loop
async def test_a_wrong_secret_ends_with_code_2_and_is_not_shown(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async with scene(tmp_path, capsys) as (operator, *_):
        tokens = tmp_path / "keys.toml"
        tokens.write_text(tokens.read_text().replace(SECRET, "x" * len(SECRET)))
        code, out, err = await operator.run(*words)
        assert (code, out) == (2, "")
        assert "answered 403: the header Tunnel-Admin must hold the secret" in err
        assert "xxxx" not in err


@pytest.mark.parametrize("limit", ["0", "-1", "10001", "all", "\u0661"])
def test_a_limit_is_a_number_of_rows(limit: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["ps", "--limit", limit])
    assert ended.value.code == 2


def test_ps_names_the_tables_that_the_relay_has(monkeypatch: pytest.MonkeyPatch) -> None:
    for table in TABLES:
        assert make_parser().parse_args(["ps", table]).table == table


@pytest.mark.parametrize(
    ("body", "why"),
    [(b"<html>", "answered something other than JSON"), (b'{"total": 1}', "answered something unknown to this")],
)
@in_loop
async def test_another_server_is_recognised(
    body: bytes, why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
        writer.close()

    async with target(answer) as port:
        assert await asyncio.to_thread(main, ["ps", "--admin", f"127.0.0.1:{port}"]) == 2
        assert why in capsys.readouterr().err


@in_loop
async def test_kick_waits_longer_than_other_commands(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """To end thousands of connections takes seconds."""
    async with scene(tmp_path, capsys) as (operator, *_):
        monkeypatch.setattr("tunnel_servlet.command.admin_listener._ANSWER_S", 0.0)  # no time at all
        assert (await operator.run("ps"))[0] == 3
        assert (await operator.run("kick", "--user", "ann"))[0] == 0
