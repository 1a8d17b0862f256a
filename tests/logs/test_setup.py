"""The log of a process from end to end: limits, lines about suppressed ones, the queue, other loggers."""

import io
import json
import logging
import sys
import threading
import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import structlog

from tests.support.logs import limited_logs
from tunnel.logs import setup
from tunnel.logs.setup import log_counts
from tunnel.process.command_line import configure_log, exit_code_of, queued_log, shows_people, tell
from tunnel.system import clock
from tunnel_servlet.access.sources import source_of

SECOND = 1_000_000
log = structlog.get_logger("test")


class Clock:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.now = 0

    def __call__(self) -> int:
        return self.now


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Iterator[Clock]:
    made = Clock()
    monkeypatch.setattr(setup, "now_us", made)
    yield made
    structlog.reset_defaults()
    monkeypatch.setattr(setup, "_current", None)


def lines_of(stream: io.StringIO) -> list[dict[str, Any]]:
    found = [json.loads(line) for line in stream.getvalue().splitlines()]
    for line in found:
        del line["timestamp"]
    return found


def test_lines_beyond_the_limit_are_counted_in_the_next_line(time: Clock) -> None:
    stream = io.StringIO()
    configure_log("info", stream)
    for _ in range(5):
        log.warning("bad", address="192.0.2.1")
    log.debug("bad", address="192.0.2.1")  # below the level
    log.info("other", field="value")
    time.now = SECOND
    log.info("bad", address="192.0.2.1")
    log.info("bad", address="192.0.2.2")
    assert lines_of(stream) == [
        {"event": "bad", "level": "warning", "address": "192.0.2.1"},
        {"event": "other", "level": "info", "field": "value"},
        {
            "event": "suppressed",
            "level": "warning",
            "kind": "bad",
            "address": "192.0.2.1",
            "lines": 4,
            "text": "4 more lines suppressed",
        },
        {"event": "bad", "level": "info", "address": "192.0.2.2"},
    ]
    assert (log_counts().written, log_counts().suppressed) == (4, 5)


def test_two_users_have_limits_of_their_own(time: Clock) -> None:
    stream = io.StringIO()
    configure_log("info", stream)
    for number in range(300):
        log.info("connect", user="eve", target=f"host{number}:1")
    log.info("connect", user="ann", target="db:1")
    log.info("dialled", user="eve", address="192.0.2.1")  # about the user, although it has an address
    lines = lines_of(stream)
    assert [len([line for line in lines if line.get("user") == user]) for user in ("eve", "ann")] == [101, 1]


def test_the_addresses_of_a_network_are_one_source() -> None:
    with limited_logs() as logs:
        for number in range(50):
            log.info("bad_request", address=f"2001:db8::{number:x}")
        log.info("bad_request", address="2001:db8:1::1")
    assert [line["address"] for line in logs] == ["2001:db8::0", "2001:db8:1::1"]
    assert source_of("2001:db8::1") == source_of("2001:db8::2")


def test_suppressed_lines_of_very_many_unauthenticated_clients_are_said_together(time: Clock) -> None:
    stream = io.StringIO()
    configure_log("info", stream)
    for number in range(50):
        log.info("bad", address=f"192.0.2.{number}")
    time.now = SECOND
    log.info("other")
    assert {"kind": "bad", "address": "many", "lines": 30}.items() <= lines_of(stream)[20].items()


def test_long_fields_are_cut(time: Clock) -> None:
    stream = io.StringIO()
    configure_log("info", stream)
    log.info("refused", text="x" * 5000)
    (line,) = lines_of(stream)
    assert line["text"] == "x" * 4000 + "... (1000 more letters)"


def test_two_users_the_log_of_a_day_of_one_is_bounded_and_has_the_lines_of_the_other(time: Clock) -> None:
    stream = io.StringIO()
    configure_log("info", stream)
    for second in range(200):
        time.now = second * SECOND
        for _ in range(4):
            for event in ("connect", "listen", "refused"):
                log.info(event, user="eve", target="\N{SNOWMAN}" * 4000)
        log.info("connect", user="ann", target="db:1")
    assert sum(line.get("user") == "ann" for line in lines_of(stream)) == 200
    assert len(stream.getvalue()) < 260 * 10 * 1024 + 200 * 4 * 300 + 30_000


class Terminal(io.StringIO):
    """A stream whose writes wait while `may_go_on` is clear."""

    def __init__(self) -> None:
        super().__init__()
        self.may_go_on = threading.Event()
        self.may_go_on.set()

    def write(self, text: str) -> int:
        assert self.may_go_on.wait(30)
        return super().write(text)


def test_a_program_that_reads_the_log_gets_json_alone_on_standard_output(
    time: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, err = Terminal(), Terminal()
    monkeypatch.setattr(out, "isatty", lambda: True)
    monkeypatch.setattr(err, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", err)
    assert shows_people()
    with queued_log("info", is_events=True):
        log.info("listening", bind="127.0.0.1:1")
        tell("for people")
        assert not shows_people()
    assert [(line["event"], line.get("text")) for line in lines_of(out)] == [
        ("listening", None),
        ("message", "for people"),
    ]
    assert err.getvalue() == ""


def test_lines_that_wait_at_the_end_are_written(time: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    stream.may_go_on.clear()
    with queued_log("info"):
        for _ in range(3):
            log.info("bad", address="192.0.2.1")
        tell("for people")
        assert stream.getvalue() == ""
        assert exit_code_of("x", lambda: 1 // 0) == 1
        stream.may_go_on.set()
    lines = stream.getvalue().splitlines()
    assert json.loads(lines[0])["event"] == "bad"
    assert lines[1] == "for people"
    assert lines[2].startswith("x: internal error: ZeroDivisionError")
    assert json.loads(lines[3])["text"] == "2 more lines suppressed"
    assert len(lines) == 4
    log.info("after")  # written at once
    tell("after, too")
    assert stream.getvalue().splitlines()[-1] == "after, too"
    assert json.loads(stream.getvalue().splitlines()[-2])["event"] == "after"


def test_a_log_that_is_never_read_does_not_keep_the_process(time: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setattr(setup, "_CLOSE_S", 0.01)
    stream.may_go_on.clear()
    with queued_log("info"):
        log.info("one")
    log.info("two")
    tell("three")
    assert exit_code_of("x", lambda: 1 // 0) == 1
    assert log_counts().dropped == 3
    stream.may_go_on.set()


def test_suppressed_lines_are_said_without_a_further_line(monkeypatch: pytest.MonkeyPatch) -> None:
    said = threading.Event()

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            if "more lines suppressed" in text:
                said.set()
            return super().write(text)

    later = [0]
    monkeypatch.setattr(setup, "now_us", lambda: clock.now_us() + later[0])
    monkeypatch.setattr(sys, "stderr", Stream())
    with queued_log("info"):
        for _ in range(3):
            log.info("bad", address="192.0.2.1")
        later[0] = SECOND
        setup._current._look()  # type: ignore[union-attr]  # the thread's own timer does not see the jump
        assert said.wait(30)
    structlog.reset_defaults()


def test_other_loggers_and_warnings_are_lines_of_the_log(time: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    with queued_log("info"):
        for _ in range(9):
            logging.getLogger("asyncio").warning("socket.send() raised %s", "exception")
        logging.getLogger("asyncio").info("nothing")
        try:
            raise KeyError("why")
        except KeyError:
            logging.getLogger("aiohttp").exception("odd")
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            warnings.warn("old", DeprecationWarning, stacklevel=1)
    found = [line for line in lines_of(stream) if line["event"] != "suppressed"]
    assert [(line["event"], line["logger"], line["level"]) for line in found] == [
        ("library", "asyncio", "warning"),
        ("library", "aiohttp", "error"),
        ("library", "py.warnings", "warning"),
    ]
    assert found[0]["text"] == "socket.send() raised exception"
    assert "KeyError" in found[1]["exception"]
    assert not any(isinstance(handler, setup._Forwarding) for handler in logging.getLogger().handlers)
