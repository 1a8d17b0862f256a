"""What an attachment learns of a connection that has no answer: the relay says why (PROTOCOL 3.14)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from typing import Any

import pytest

from loadtests.harness.ports import hold_port
from tests.servlet.rig import TOKENS, relay, settings, until
from tests.support.loops import in_loop
from tunnel import Attachment, DeniedError, RefusedError, StreamReader, StreamWriter, attach
from tunnel.waiting import UnansweredConnects
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule

ANN = Grant(connect=(parse_rule("127.0.0.0/8:*"),), services=("reports",), listen=("reports",))
RULES = GrantTable({"ann": ANN, "bob": ANN})
DIALS = "the exit in the relay's process has the connection, and the target has not answered"


class Heard:
    """A listener that keeps what it hears."""

    def __init__(self) -> None:
        self.news: list[tuple[str, str]] = []

    def unanswered(self, target: str, seconds: float, why: str) -> None:
        assert seconds > 0
        self.news.append((target, why))


@asynccontextmanager
async def asking(**options: Any) -> AsyncIterator[tuple[Attachment, Heard]]:
    """Yield an attachment at a relay with an inline exit, and what it says of connections without an answer."""
    async with (
        relay(settings(grants=RULES, exit="inline"), **options) as running,
        attach(f"http://{running.addresses[0]}", token=TOKENS["ann"], proxy=None, carrier="poll") as attachment,
    ):
        heard = Heard()
        attachment.add_wait_listener(heard)
        yield attachment, heard


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.waiting._ASK_S", 0.05)
    monkeypatch.setattr("tunnel.waiting._FIRST_ANSWER_S", 10.0)


@in_loop
async def test_the_listener_and_the_error_say_what_the_relay_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*arguments: Any, **options: Any) -> Any:
        await asyncio.Event().wait()

    async with asking() as (attachment, heard):
        monkeypatch.setattr("tunnel_servlet.exit.dialer.Dialer.__call__", never)
        with pytest.raises(TimeoutError) as caught:
            await attachment.open_connection("127.0.0.1", 9, timeout=1.0)
        assert str(caught.value) == f"127.0.0.1:9: no answer within 1 s: {DIALS}"
        assert heard.news == [("127.0.0.1:9", DIALS)]


@in_loop
async def test_a_relay_that_does_not_answer_adds_nothing_to_the_error() -> None:
    async with asking(packet_filter=lambda frame: False) as (attachment, _):
        with pytest.raises(TimeoutError, match=r"no answer within 0\.3 s$"):
            await attachment.open_connection("127.0.0.1", 9, timeout=0.3)


@in_loop
async def test_a_connection_that_is_answered_or_refused_soon_is_not_asked_about() -> None:
    async with asking() as (attachment, heard):

        async def greet(reader: StreamReader, writer: StreamWriter) -> None:
            writer.close()

        await attachment.start_server(greet, "reports")
        (await attachment.open_connection("reports"))[1].close()
        with pytest.raises(RefusedError), hold_port() as port:
            await attachment.open_connection("127.0.0.1", port)
        with pytest.raises(DeniedError):
            await attachment.open_connection("db", 5432)
        assert heard.news == []


# --- the watch by itself


class Scene:
    """Watches without a relay: `answers` are those of the relay, and an exception among them is raised."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[str, int | None]] = []
        self.told: list[str] = []
        self.connects = UnansweredConnects(self.ask, self.tell)

    def tell(self, target: str, seconds: float, why: str) -> None:
        self.told.append(f"{target}: {why}")

    async def ask(self, host: str, port: int | None, seconds: float) -> str:
        self.asked.append((host, port))
        answer = self.answers.pop(0) if self.answers else ""
        if isinstance(answer, Exception):
            raise answer
        return answer


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.waiting._AGAIN_S", 0.05)


@pytest.mark.usefixtures("often")
@in_loop
async def test_the_reason_is_asked_for_again_and_each_answer_is_told() -> None:
    scene = Scene("silent for 2 s", "silent for 6 s")
    with scene.connects.watch("db", 5432) as watch:
        await until(lambda: len(scene.told) == 2)
        assert watch.why == "silent for 6 s"
    assert scene.told == ["db:5432: silent for 2 s", "db:5432: silent for 6 s"]
    await asyncio.sleep(0.1)
    assert len(scene.told) == 2  # the connection is over


@in_loop
async def test_connections_to_one_target_are_asked_about_once() -> None:
    scene = Scene()
    with scene.connects.watch("db", 5432) as watch, scene.connects.watch("reports", None):
        with scene.connects.watch("db", 5432) as same:
            assert watch is same
        await until(lambda: len(scene.told) == 2)
    assert sorted(scene.told) == ["db:5432: ", "reports: "]
    assert sorted(scene.asked) == [("db", 5432), ("reports", None)]


@in_loop
async def test_a_question_that_fails_is_no_answer() -> None:
    scene = Scene(DeniedError("no rule"))
    with scene.connects.watch("db", 5432) as watch:
        await until(lambda: scene.told == ["db:5432: "])
        assert watch.why == ""


@in_loop
async def test_few_targets_are_asked_about_at_once_and_the_others_have_no_reason() -> None:
    held, scene = asyncio.Event(), Scene(*(["silent"] * 100))

    async def ask(host: str, port: int | None, seconds: float) -> str:
        await held.wait()
        return await scene.ask(host, port, seconds)

    connects = UnansweredConnects(ask, scene.tell)
    with ExitStack() as watched:
        for port in range(1, 41):
            watched.enter_context(connects.watch("db", port))
        await until(lambda: len(scene.told) == 24)
        assert {told.partition(" ")[2] for told in scene.told} == {""}
        assert scene.asked == []
        held.set()
        await until(lambda: len(scene.told) == 40)
    assert len(scene.asked) == 16
    assert sum(told.endswith(": silent") for told in scene.told) == 16


@in_loop
async def test_a_question_that_ends_in_any_way_makes_place_for_others() -> None:
    asked: list[int | None] = []

    async def ask(host: str, port: int | None, seconds: float) -> str:
        asked.append(port)
        if host == "held":
            await asyncio.Event().wait()
        raise DeniedError("no rule")

    scene = Scene()
    connects = UnansweredConnects(ask, scene.tell)
    for host in ("failing", "held"):
        with ExitStack() as watched:
            for port in range(1, 17):
                watched.enter_context(connects.watch(host, port))
            await until(lambda: len(asked) == 16)
        asked.clear()
    with connects.watch("failing", 99):
        await until(lambda: asked == [99])
