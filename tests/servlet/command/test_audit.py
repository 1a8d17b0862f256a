"""The audit as an operator sees it: a relay and an exit in processes of their own, a disk that is full, the command."""

from __future__ import annotations

import asyncio
import json
import os
import resource
import signal
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog

from tests.servlet.command.rig import process
from tests.servlet.rig import TOKENS, relay, settings, until
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import DeniedError, RefusedError, attach
from tunnel_servlet.audit.event import AuditEvent, Kind, decode_event, encode_event
from tunnel_servlet.audit.files import AuditFile
from tunnel_servlet.command.main import main

CONFIG = """
listen = ["127.0.0.1:0"]
admin = "127.0.0.1:0"
tokens = "tokens.toml"
[audit]
{audit}
[users.ann]
connect = ["localhost:*"]
"""


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    structlog.reset_defaults()


def configure(audit: str, file: str = "relay.toml") -> None:
    Path(file).write_text(CONFIG.format(audit=audit))


@pytest.fixture
def token(capsys: pytest.CaptureFixture[str]) -> str:
    configure("required = true")
    assert main(["user", "add", "ann"]) == 0
    structlog.reset_defaults()
    return capsys.readouterr().out.strip()


async def mirror(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 16):
        writer.write(data)


def events(path: str = "audit.jsonl") -> list[AuditEvent]:
    return [event for event in map(decode_event, Path(path).read_bytes().splitlines()) if event is not None]


def readiness(url: str) -> int:
    try:
        with urllib.request.urlopen(f"{url}/readyz") as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


async def answers(url: str, status: int) -> None:
    """Ask until the relay answers with this status."""
    while await asyncio.to_thread(readiness, url) != status:
        pass


@in_loop
async def test_a_full_disk_refuses_connections_until_there_is_room_again(token: str) -> None:
    async with target(mirror) as port, process("serve", "-c", "relay.toml") as serving:
        url, admin = await serving.urls()
        async with attach(url, token=token, proxy=None) as ann:
            _, writer = await ann.open_connection("localhost", port)
            await until(lambda: events()[-1].event is Kind.CONNECTION_ALLOWED)
            limits = resource.prlimit(serving.process.pid, resource.RLIMIT_FSIZE)
            full = os.stat("audit.jsonl").st_size + 10  # a part of a line still fits
            resource.prlimit(serving.process.pid, resource.RLIMIT_FSIZE, (full, limits[1]))
            writer.close()
            await serving.line("audit_not_written")
            await answers(admin, 503)
            with pytest.raises(RefusedError, match="the relay cannot write its audit"):
                await ann.open_connection("localhost", port)
            resource.prlimit(serving.process.pid, resource.RLIMIT_FSIZE, limits)
            await serving.line("audit_written")
            await answers(admin, 200)
            _, writer = await ann.open_connection("localhost", port)
            writer.close()
        serving.process.send_signal(signal.SIGTERM)
        assert await serving.ended() == 0
    found = events()
    assert [event.number for event in found] == list(range(1, len(found) + 1))
    kinds = [event.event.value for event in found if event.event.value.startswith("connection")]
    assert kinds == ["connection_allowed", "connection_ended", "connection_refused", *kinds[:2]]
    assert found[-1].event is Kind.RELAY_STOPPED


@in_loop
async def test_a_relay_that_cannot_open_its_audit_does_not_start(token: str) -> None:
    os.symlink("/dev/null", "audit.jsonl")
    async with process("serve", "-c", "relay.toml") as serving:
        assert await serving.ended() == 2
    assert "audit: audit.jsonl cannot be written to" in "".join(serving.lines)


@in_loop
async def test_standard_output_has_the_audit_and_nothing_else(token: str) -> None:
    configure('to = "stdout"')
    async with process("serve", "-c", "relay.toml") as serving:
        await serving.urls()
        serving.process.send_signal(signal.SIGTERM)
        out, _ = await serving.process.communicate()
    kinds = [json.loads(line)["event"] for line in out.splitlines()]
    assert sorted(kinds[:2]) == ["endpoint_attached", "relay_started"]
    assert kinds[2:] == ["admin", "relay_stopped"]
    async with process("serve", "-c", "relay.toml", "--json") as serving:
        out, _ = await serving.process.communicate()
    assert b"audit.to: with --json" in out


@in_loop
async def test_an_exit_writes_the_addresses_that_it_has_dialled(token: str) -> None:
    configure('file = "exit.jsonl"', "exit.toml")
    async with target(mirror) as port, relay(settings(switch={"settle_us": 1})) as running:
        url = f"http://{running.addresses[0]}"
        arguments = ["exit", "--relay", url, "-c", "exit.toml", "--proxy", "none"]
        async with process(*arguments, TUNNEL_TOKEN=TOKENS["exits"]) as exit_:
            await exit_.line("attached to")
            async with attach(url, token=TOKENS["ann"], proxy=None) as ann:
                _, writer = await ann.open_connection("localhost", port)
                writer.close()
                for host in ("localhost", "127.0.0.1"):
                    with pytest.raises((RefusedError, DeniedError)):
                        await ann.open_connection(host, 1)
            exit_.process.send_signal(signal.SIGTERM)
            assert await exit_.ended() == 0
    dialled, refused, denied = events("exit.jsonl")
    assert (dialled.event, dialled.user, dialled.target) == (Kind.TARGET_DIALLED, "ann", f"localhost:{port}")
    assert (dialled.address, dialled.rule) == (f"127.0.0.1:{port}", "localhost:*")
    assert (refused.event, refused.reason, refused.by) == (Kind.TARGET_REFUSED, "refused", "exit")
    assert (denied.reason, denied.target) == ("denied", "127.0.0.1:1")


# --- the command


def written(path: str = "audit.jsonl") -> None:
    refused = {"reason": "denied", "question": True}
    ended = {"sent_bytes": 1, "received_bytes": 2, "seconds": 3.0}
    some: list[dict[str, Any]] = [
        {"event": Kind.CONNECTION_ALLOWED, "user": "ann", "target": "db:5432", "rule": "db:5432", "acceptor": "berlin"},
        {"event": Kind.CONNECTION_ENDED, "user": "ann", "target": "db:5432", **ended},
        {"event": Kind.CONNECTION_REFUSED, "user": "bob", "target": "x\x1b[31m:1", **refused},
        {"event": Kind.RULES_CHANGED, "user": "bob", "added": ["connect a:1", "listen b"]},
    ]
    file = AuditFile(Path(path), bytes_max=200, files_max=100, syncs=False)
    for number, fields in enumerate(some, 1):
        file.write(
            encode_event(AuditEvent(number=number, run="r", time=f"2026-11-29T{number:02d}:00:00.000000Z", **fields))
        )
    file.close()


def shown(capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0) -> str:
    assert main(["audit", *arguments]) == code
    found = capsys.readouterr()
    return found.out + found.err


def test_the_command_reads_all_files_for_people(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    written()
    assert len(list(Path().glob("audit.jsonl*"))) > 1
    assert shown(capsys).splitlines() == [
        "2026-11-29T01:00:00.000000Z\tconnection_allowed\tann\tdb:5432\trule db:5432, by berlin",
        "2026-11-29T02:00:00.000000Z\tconnection_ended\tann\tdb:5432\t1 bytes sent, 2 received, 3.0 s",
        "2026-11-29T03:00:00.000000Z\tconnection_refused (question)\tbob\tx\\x1b[31m:1\tdenied",
        "2026-11-29T04:00:00.000000Z\trules_changed\tbob\t-\tadded connect a:1; listen b",
    ]


@pytest.mark.parametrize(
    ("arguments", "numbers"),
    [
        (["--user", "bob"], [3, 4]),
        (["--refused"], [3]),
        (["--event", "connection_ended", "--event", "rules_changed"], [2, 4]),
        (["--since", "2026-11-29T03:00", "--user", "bob", "--refused"], [3]),
        (["--target", "db"], [1, 2]),
    ],
)
def test_the_command_chooses_events_and_prints_them_as_they_are(
    token: str, capsys: pytest.CaptureFixture[str], arguments: list[str], numbers: list[int]
) -> None:
    written()
    lines = shown(capsys, *arguments, "--json").splitlines()
    assert [json.loads(line)["number"] for line in lines] == numbers


def test_the_command_shows_sums(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    written()
    assert shown(capsys, "--totals").splitlines() == [
        "user\tconnections\trefused\tsent bytes\treceived bytes\thours",
        "ann\t1\t0\t1\t2\t0.0",
        "bob\t0\t1\t0\t0\t0.0",
        "",
        "allowed by rule",
        "1\tdb:5432",
        "",
        "refused",
        "1\tx\\x1b[31m:1 denied",
    ]
    assert json.loads(shown(capsys, "--totals", "--json"))["rules"] == [["db:5432", 1]]


def test_the_command_says_what_is_not_there(token: str, capsys: pytest.CaptureFixture[str]) -> None:
    written("copy.jsonl")
    next(Path().glob("copy.jsonl.*")).unlink()
    with Path("copy.jsonl").open("a") as file:
        file.write('{"ev')
    said = shown(capsys, "--file", "copy.jsonl", "--user", "bob")
    assert "note: 1 line(s) are no events" in said


@pytest.mark.parametrize(
    ("audit", "arguments", "text"),
    [
        ("", [], "audit.jsonl: no such file: has the relay run"),
        ('to = "syslog"', [], "the audit goes to syslog: read it there"),
        ("", ["--since", "soon"], "'soon' is no time: write 90s"),
        ("", ["--file", "missing/a"], "missing/a: no such file"),
        ("", ["-c", "other.toml"], "other.toml has no table [audit]"),
    ],
)
def test_the_command_says_what_to_do(
    token: str, capsys: pytest.CaptureFixture[str], audit: str, arguments: list[str], text: str
) -> None:
    Path("other.toml").write_text('[users.ann]\nconnect = ["a:1"]\n')
    configure(audit)
    if "--since" in arguments:
        written()
    assert text in shown(capsys, *arguments, code=2)
