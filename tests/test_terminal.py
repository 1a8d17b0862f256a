"""Text of other people and machines does not control the terminal of the person who reads it.

One test walks the syntax trees of the whole product: text leaves only through `tunnel.process.command_line`, and
through a few other places, each with its reason. The others let an attacker write escape codes wherever text goes in.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import io
import json
import re
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import msgspec
import pytest
import structlog

from tests.servlet.rig import Client, exchange_body, relay
from tests.servlet.support import connect
from tests.support.imports import project_files
from tunnel.analysis import cli as analysis
from tunnel.logs import setup
from tunnel.messages import ConsumedMessage
from tunnel.messages.broker.protocol import PartitionReport, PositionReport, TopicReport
from tunnel.process.command_line import configure_log, show, show_json, show_payload, show_step, tell
from tunnel.wire import Target, TargetKind
from tunnel_client.cli.broker import look
from tunnel_client.cli.status_table import render
from tunnel_client.cli.up.display import Display
from tunnel_client.doctor.findings import Finding, Report, Verdict, render_finding, render_summary
from tunnel_client.status import ClientReport, ConnectionReport, EntryReport, RoadLine
from tunnel_servlet.command.main import main as relay_main

ROOT = Path(__file__).parent.parent
EVIL = "a\x1b]0;owned\x07\x1b[2J\x9b2J\u202eb\u2066c\x7f\u2028d\re"
SHOWN = r"a\x1b]0;owned\x07\x1b[2J\x9b2J\u202eb\u2066c\x7f\u2028d\re"
OBEYED = re.compile(r"[^\n\t -~\u00a1-\u200a\u2010-\u2027\u2030-\u205f\u2070-\ud7ff]")

# The places that may write to standard output or error, or pass one of them on, and why.
MAY_WRITE = {
    "tunnel/process/command_line.py": "the functions through which all else is written",
    "tunnel/process/program.py": "replaces streams that are closed or broken; its one text has nothing of others",
    "tunnel/logs/setup.py": "writes what `tell` has made printable",
    "servlet/tunnel_servlet/audit/trail.py": "gives standard output to the audit, whose lines are JSON in ASCII",
    "client/tunnel_client/cli/up/display.py": "draws lines that are made printable before, with colours",
    "client/tunnel_client/borrowed/site/sitecustomize.py": "has the standard library only, and escapes the text",
}
STREAMS = ("stdout", "stderr", "__stdout__", "__stderr__")
WRITERS = ("input", "print_exc", "print_exception", "Console", "StreamHandler", "basicConfig", "SystemExit")
HARMLESS = ("isatty", "flush")  # methods of a stream that write no text


def outputs(tree: ast.AST) -> Iterator[int]:
    """Yield the lines that could write text: calls of print, and other uses of a stream than to ask about it."""
    allowed = set()
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Attribute() as stream, attr=name) if name in HARMLESS:
                allowed.add(stream)
            case ast.Call(func=ast.Name("may_escape"), args=[ast.Attribute() as stream]):
                allowed.add(stream)
    for node in ast.walk(tree):
        match node:
            case ast.Call(func=ast.Name(name) | ast.Attribute(attr=name)) if name in WRITERS:
                yield node.lineno
            case ast.Call(func=ast.Attribute(attr="exit"), args=[_, _]):  # of an argparse parser
                yield node.lineno
            case ast.Call(func=ast.Name("print")):
                yield node.lineno
            case ast.Attribute(value=ast.Name("sys"), attr=name) if name in STREAMS and node not in allowed:
                yield node.lineno
            case ast.ImportFrom(module="sys", names=names) if any(each.name in STREAMS for each in names):
                yield node.lineno


@pytest.mark.parametrize(
    "line",
    [
        "print(text)",
        "sys.stdout.write(text)",
        "sys.stderr.buffer.write(text)",
        "stream = sys.stderr",
        "Console(file=sys.__stdout__)",
        "from sys import stdout as quiet",
        "traceback.print_exc()",
        "logging.StreamHandler()",
        "parser.exit(2, text)",
        "raise SystemExit(text)",
        "input(text)",
    ],
)
def test_an_output_is_found(line: str) -> None:
    assert set(outputs(ast.parse(line))) == {1}


def test_text_leaves_the_product_only_where_it_is_made_printable() -> None:
    found: dict[str, list[int]] = {}
    for path in project_files(ROOT):
        if path.parts[0] in ("tunnel", "servlet", "client"):
            lines = list(outputs(ast.parse((ROOT / path).read_text())))
            if lines:
                found[str(path)] = lines
    assert set(found) == set(MAY_WRITE), f"write with show, show_json or tell of tunnel.process.command_line: {found}"


# --- the functions that write


class Terminal(io.TextIOWrapper):
    """A stream that says that it is a terminal."""

    def __init__(self) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", errors="surrogatepass", write_through=True, newline="")

    def isatty(self) -> bool:
        return True

    @property
    def shown(self) -> str:
        return self.buffer.getvalue().decode("utf-8", "surrogatepass")  # type: ignore[attr-defined,no-any-return]


@contextmanager
def on_a_terminal() -> Iterator[Terminal]:
    """Let standard output and error lead to a terminal."""
    made = Terminal()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(made), redirect_stderr(made):
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        yield made


def test_each_function_that_writes_escapes_what_a_terminal_would_obey() -> None:
    with on_a_terminal() as terminal:
        tell(f"{EVIL}\n\tnext")
        show(f"{EVIL}\n\tnext")
        show_payload(f"{EVIL}\n\tnext".encode() + b"\xff\x9b")
    assert terminal.shown == f"{SHOWN}\n\tnext\n" * 2 + f"{SHOWN}\n\tnext\\xff\\x9b\n"


def test_json_on_a_terminal_is_ascii_and_keeps_its_value() -> None:
    with on_a_terminal() as terminal:
        show_json({EVIL: [EVIL]})
        show_json({EVIL: [EVIL]}, is_indented=True)
    assert re.fullmatch(r"[\n -~]*", terminal.shown)
    first, rest = terminal.shown.split("\n", 1)
    assert json.loads(first) == json.loads(rest) == {EVIL: [EVIL]}


def test_only_the_command_itself_may_add_escape_codes() -> None:
    with on_a_terminal() as terminal:
        show(EVIL, codes="\x1b[H\x1b[J")
        show_step(f"{EVIL}\n")
    assert terminal.shown == f"\x1b[H\x1b[J{SHOWN}\n\r\x1b[K{SHOWN}\\n"


def test_payloads_go_into_a_file_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr("sys.stdout", file)
        show("first")
        show_payload(b"\x1b[2J\xff\r")
        show("last")
    assert (tmp_path / "out").read_bytes() == b"first\n\x1b[2J\xff\r\nlast\n"


def test_a_name_that_the_encoding_of_the_terminal_lacks_does_not_end_the_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii", write_through=True)
    monkeypatch.setattr("sys.stdout", stream)
    show("füür \ud800")
    assert stream.buffer.getvalue() == b"f\\xfc\\xfcr \\ud800\n"


# --- the log of an operator


@pytest.fixture
def terminal() -> Terminal:
    return Terminal()


@pytest.fixture
def log(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    configure_log("info", terminal)  # with colours, unless the environment says otherwise
    yield structlog.get_logger("relay")
    structlog.reset_defaults()
    monkeypatch.setattr(setup, "_current", None)


def uncoloured(text: str) -> str:
    return re.sub(r"\x1b\[\d*m", "", text)


@pytest.mark.parametrize("field", ["user", "target", "service", "address", "text", "agent"])
def test_two_users_a_name_in_the_log_does_not_control_the_terminal_of_the_operator(
    field: str, log: Any, terminal: Terminal
) -> None:
    log.info("connect", **{field: f"{EVIL}\n2026-01-01 [info] forged"})
    log.info("connect", **{field: "a\x9b2J\u202e"})  # the renderer itself escapes only text with spaces and the like
    shown = uncoloured(terminal.shown)
    assert f"{SHOWN}\\n2026-01-01 [info] forged" in shown
    assert r"a\x9b2J\u202e" in shown
    assert not OBEYED.search(shown)
    assert shown.count("\n") == 2


def test_a_value_that_is_no_text_is_printable_too(log: Any, terminal: Terminal) -> None:
    class Odd:
        def __repr__(self) -> str:
            return EVIL

    log.info("connect", a=Odd(), b=[EVIL], c={EVIL: 1}, d=EVIL.encode(), e=LookupError(EVIL), f=None, g=2.5)
    shown = uncoloured(terminal.shown)
    assert "f=None" in shown
    assert "g=2.5" in shown
    assert not OBEYED.search(shown)


def test_the_message_of_an_exception_is_printable_and_its_traceback_keeps_its_lines(
    log: Any, terminal: Terminal
) -> None:
    try:
        raise LookupError(EVIL)
    except LookupError:
        log.exception("failed")
    shown = uncoloured(terminal.shown)
    assert f"LookupError: {SHOWN}" in shown
    assert "\nTraceback (most recent call last):\n" in shown
    assert not OBEYED.search(shown)


def test_two_users_a_target_with_escape_codes_is_logged_by_a_relay_on_a_terminal(log: Any, terminal: Terminal) -> None:
    async def attack() -> None:
        async with relay() as running, Client(running, "ann") as ann:
            await ann.attach()
            await ann.post(exchange_body(ann.epoch, 1, connect(7, target=Target(TargetKind.SERVICE, "x\x9b2J\u202e"))))

    asyncio.run(attack())
    shown = uncoloured(terminal.shown)
    assert "connect" in shown
    assert r"x\x9b2J\u202e" in shown
    assert not OBEYED.search(shown)


# --- what the commands show


def client_of_evil() -> ClientReport:
    connection = ConnectionReport(1, EVIL, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, EVIL)
    entries = [EntryReport(EVIL, EVIL, state, EVIL) for state in ("serving", "failed")]
    return ClientReport(1, EVIL, 0.0, False, EVIL, EVIL, 0, [connection], entries, [RoadLine(EVIL, "resting", 2, EVIL)])


def test_the_tables_of_status_keep_their_lines() -> None:
    table = render([client_of_evil()], 1.0)
    assert not OBEYED.search(table)
    assert table.count("\n") == 9
    assert SHOWN in table


def test_the_live_lines_of_up_keep_their_lines() -> None:
    terminal = Terminal()
    display = Display(terminal)
    display.report = client_of_evil()
    display.close()
    shown = re.sub(r"\x1b\[[\d;?]*[a-zA-Z]", "", terminal.shown).replace("\r", "")
    assert SHOWN[:20] in shown
    assert not OBEYED.search(shown)


def test_a_relay_or_a_middlebox_does_not_control_the_terminal_of_the_doctor() -> None:
    found = render_finding(Finding("path", Verdict.PROBLEM, f"the server says {EVIL}", f"ask\n{EVIL}"))
    report = Report("http://relay", summary=f"{EVIL}\nverdict: forged", next=f"{EVIL}\nrm -r x")
    with on_a_terminal() as terminal:
        show(found, end="")
        show(render_summary(report), end="")
        show_json(msgspec.Raw(report.encode()))
    assert not OBEYED.search(terminal.shown)
    assert "\nverdict: forged" not in terminal.shown
    assert "\nrm" not in terminal.shown


def test_two_users_names_and_payloads_of_a_broker_do_not_control_the_terminal_of_its_reader() -> None:
    topics = [TopicReport(f"t{EVIL}\n", "log", [PartitionReport(0, 0, 1, 1, f"{EVIL}\n")])]
    positions = [PositionReport(f"g{EVIL}\n", f"t{EVIL}\n", 0, 0, 1)]

    class Broker:
        async def topics(self) -> list[TopicReport]:
            return topics

        async def positions(self, group: str) -> list[PositionReport]:
            return positions

        async def metrics(self) -> dict[str, float]:
            return {f"m{EVIL}\n": 1.0}

        def consumer(self, *place: object) -> Broker:
            return self

        async def fetch(self, wait_ms: int) -> list[ConsumedMessage]:
            return [ConsumedMessage(0, EVIL.encode() + b"\xff\x9b")]

    @asynccontextmanager
    async def client(arguments: argparse.Namespace) -> AsyncIterator[Broker]:
        yield Broker()

    for is_json in (False, True):
        with pytest.MonkeyPatch.context() as patch, on_a_terminal() as terminal:
            patch.setattr(look, "_client", client)
            options: dict[str, Any] = {
                "broker": "b:1",
                "json": is_json,
                "group": "",
                "over": None,
                "topic": topics[0].topic,
            }
            options |= {"count": 1, "follow": False, "partition": None, "start": 0}
            for command in (look.topics, look.lag, look.read, look.metrics):
                command(argparse.Namespace(**options))
        assert not OBEYED.search(terminal.shown)
        assert terminal.shown.count("\n") == (4 if is_json else 6)


def test_two_users_a_path_or_name_in_rule_check_does_not_control_the_terminal(tmp_path: Path) -> None:
    file = str(tmp_path / "relay.toml")
    with on_a_terminal() as terminal:
        assert relay_main(["init", file, "--token-file", str(tmp_path / "token")]) == 0
        assert relay_main(["rule", "check", "admin", f"{EVIL}\nallowed", "-c", file]) == 5
        assert relay_main(["rule", "check", "admin", EVIL, "-c", file, "--json"]) == 5
        assert relay_main(["rule", "check", EVIL, "x:1", "-c", file]) == 2
        assert relay_main(["check", "-c", str(tmp_path / EVIL)]) == 2
    assert terminal.shown.count(SHOWN) >= 3
    assert "\nallowed" not in terminal.shown
    assert not OBEYED.search(terminal.shown)


def test_two_users_names_in_traces_do_not_control_the_terminal_of_the_analyst(tmp_path: Path) -> None:
    options = argparse.Namespace(directory=str(tmp_path), output=str(tmp_path / "o"), log="warning", json=False)
    options.fail_if = []
    name = f"{EVIL}\n".replace("/", "")
    with pytest.MonkeyPatch.context() as patch, on_a_terminal() as terminal:
        patch.setattr("tunnel.analysis.qlog.export", lambda *_: [tmp_path / name])
        assert analysis._export(options) == 0
        patch.setattr(analysis, "_stored", lambda _: object())
        patch.setattr("tunnel.analysis.page.report.render", lambda *_: "")
        patch.setattr("tunnel.analysis.verdicts.verdict.verdict", lambda _: [f"The service {name} was slow."])
        assert analysis._report(options) == 0
    text = terminal.shown.replace("\r\x1b[K", "")
    assert not OBEYED.search(text)
    assert text.count("\n") == 3


def test_a_wrong_argument_is_shown_without_its_escape_codes() -> None:
    for argument in (EVIL, "--a\x9b2J\u202e"):
        with on_a_terminal() as terminal, pytest.raises(SystemExit):
            relay_main([argument])
    assert r"unknown option --a\x9b2J\u202e" in terminal.shown
    assert not OBEYED.search(terminal.shown)
