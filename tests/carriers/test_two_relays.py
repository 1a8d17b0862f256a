"""A balancer before two relays that do not know of each other: the error says so, on every road (PROTOCOL 6.3)."""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from types import TracebackType
from typing import Any

import pytest
import uvloop

from tests.carriers.harness import ask, echo, say_and_hear
from tests.support.http_relay import HttpTestRelay, LinkTestRelay, token_of
from tests.support.loops import run
from tests.support.proxies import splice
from tunnel import Attachment, ResetError, StreamReader, StreamWriter, UnreachableError, attach
from tunnel.exchange.lanes.registration import Registration
from tunnel.wire import Attached


class Balancer:
    """Passes each new TCP connection to the relay at `chosen`, an index; with `turns`, to each relay in turn."""

    def __init__(self, *relays: HttpTestRelay, turns: bool = False) -> None:
        self.relays = relays
        self.chosen = 0
        self.turns = turns
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> "Balancer":
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}/prefix"
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._server.close()
        self.cut()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def attach(self, carrier: str) -> Attachment:
        return attach(self.url, token=token_of("bob"), proxy=None, carrier=carrier)

    def move(self, chosen: int) -> None:
        """Pass all connections to this relay, and end the older ones."""
        self.chosen = chosen
        self.cut()

    def cut(self) -> None:
        for task in self._tasks:
            task.cancel()

    def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        relay = self.relays[self.chosen]
        if self.turns:
            self.chosen = (self.chosen + 1) % len(self.relays)
        task = asyncio.get_running_loop().create_task(self._pass_on(reader, writer, relay.port))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda _: writer.close())  # a task that is cancelled before it begins runs nothing

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, port: int) -> None:
        with contextlib.suppress(ConnectionError, RuntimeError):  # uvloop's, for a write after the peer's reset
            far_reader, far_writer = await asyncio.open_connection("127.0.0.1", port)
            with contextlib.closing(far_writer):
                await asyncio.gather(splice(reader, far_writer), splice(far_reader, writer))


@contextlib.asynccontextmanager
async def two_relays() -> AsyncIterator[tuple[HttpTestRelay, HttpTestRelay, Balancer]]:
    """Two relays that can open links, and a balancer before them."""
    async with LinkTestRelay() as one, LinkTestRelay() as other, Balancer(one, other) as balancer:
        yield one, other, balancer


SEVERAL = "several relays answer at this address by turns"


async def raise_refusal(client: Attachment) -> None:
    """Raise the error that ends the client, once there is one."""
    while client.refusal is None:  # noqa: ASYNC110
        await asyncio.sleep(0.01)
    raise client.refusal


@pytest.mark.parametrize("carrier", ["poll", "link", "websocket"])
def test_each_connection_goes_to_another_relay(carrier: str) -> None:
    """A link to one of them works while it lasts; here each one is cut."""

    async def cut(balancer: Balancer) -> None:
        while True:
            await asyncio.sleep(0.3)
            balancer.cut()

    async def main() -> None:
        async with LinkTestRelay() as one, LinkTestRelay() as other, Balancer(one, other, turns=True) as balancer:
            cutting = asyncio.create_task(cut(balancer))
            with pytest.raises(UnreachableError, match=SEVERAL):
                async with asyncio.timeout(60), balancer.attach(carrier) as client:
                    await raise_refusal(client)
            cutting.cancel()

    run(main(), uvloop.new_event_loop)


@pytest.fixture
def met(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The epochs of the relays at which endpoints have attached, one after the other."""
    epochs: list[int] = []
    accept = Registration.accept

    def accept_and_tell(of: Registration, message: Attached, now: int, *, known_us: int = -1) -> str:
        fault = accept(of, message, now, known_us=known_us)
        if not fault:
            epochs.append(message.epoch)
        return fault

    monkeypatch.setattr(Registration, "accept", accept_and_tell)
    return epochs


@pytest.mark.interpreted
@pytest.mark.parametrize("carrier", ["poll", "link", "websocket"])
def test_a_client_is_moved_to_another_relay_and_back(carrier: str, met: list[int]) -> None:
    """Its connections are lost each time: the error comes at the second return, not after 5 minutes."""

    async def main() -> None:
        async with (
            two_relays() as (one, _, balancer),
            one.attach("ann", carrier="poll", linger=0.0) as service,
        ):
            await service.start_server(echo, "echo")
            with pytest.raises(UnreachableError, match=SEVERAL):
                await be_moved(balancer, carrier, met)

    run(main(), uvloop.new_event_loop)


async def be_moved(balancer: Balancer, carrier: str, met: list[int]) -> None:
    async with asyncio.timeout(60), balancer.attach(carrier) as client:
        reader, writer = await say_and_hear(client)
        for chosen in (1, 0, 1):
            left = met[-1]
            balancer.move(chosen)
            while met[-1] == left and client.refusal is None:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
            if chosen == 0:
                await ask(reader, writer, b"the connection goes on where it was opened")
        await raise_refusal(client)


def let_run(relay: HttpTestRelay) -> None:
    """Let the relay have run for a minute: only then can the client know that it is no successor of another one."""
    context: Any = relay.host.switch._context
    context._started_us -= 60_000_000


@pytest.fixture
def short_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the other ends of connections a second to come to the other relay."""
    monkeypatch.setattr("tunnel.core.endpoint.MOVED_US", 1_000_000)


LEFT = "several relays answer at this address, and this endpoint was moved to another one"


@pytest.mark.usefixtures("short_wait")
@pytest.mark.parametrize("carrier", ["poll", "stream", "link", "websocket"])
def test_a_connection_that_stays_at_another_relay_ends_soon(carrier: str) -> None:
    """The client is moved once, and the other end of its connection is not: nothing would come for 5 minutes."""

    async def main() -> None:
        async with (
            two_relays() as (one, other, balancer),
            one.attach("ann", carrier="poll", linger=0.0) as service,
            balancer.attach(carrier) as client,
        ):
            await service.start_server(echo, "echo")
            reader, writer = await say_and_hear(client)
            let_run(other)
            balancer.move(1)
            with pytest.raises(ResetError, match=LEFT):
                async with asyncio.timeout(60):
                    await reader.read(1)
            writer.close()
            assert client.refusal is None  # new connections may work

    run(main(), uvloop.new_event_loop)


def records_of(caplog: pytest.LogCaptureFixture) -> list[logging.LogRecord]:
    """Return what the product has logged; the test relay's HTTP server logs clients that have gone, too."""
    return [record for record in caplog.records if record.name.startswith("tunnel")]


@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_a_move_is_logged_at_once_if_there_are_connections(carrier: str, caplog: pytest.LogCaptureFixture) -> None:
    async def main() -> None:
        async with (
            two_relays() as (one, other, balancer),
            one.attach("ann", carrier="poll", linger=0.0) as service,
            balancer.attach(carrier) as idle,
            balancer.attach(carrier) as client,
        ):
            await service.start_server(echo, "echo")
            _, writer = await say_and_hear(client)
            let_run(other)
            seen = len(other.seen)
            balancer.move(1)
            async with asyncio.timeout(60):
                while not records_of(caplog) or not idle.is_attached or len(other.seen) < seen + 6:  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            assert not writer.is_closing()  # its other end may come
            writer.transport.abort()

    run(main(), uvloop.new_event_loop)
    (record,) = records_of(caplog)
    assert (record.name, record.levelname) == ("tunnel.waiting", "WARNING")
    assert LEFT in record.getMessage()
    assert "75 s" in record.getMessage()


@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_a_failover_that_takes_the_other_end_along_later_ends_nothing(
    carrier: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def main() -> None:
        async with (
            LinkTestRelay() as one,
            LinkTestRelay() as other,
            Balancer(one, other) as busy,
            Balancer(one, other) as idle,
            idle.attach(carrier) as service,
            busy.attach(carrier) as client,
        ):
            await service.start_server(echo, "echo")
            reader, writer = await say_and_hear(client)
            let_run(other)
            busy.move(1)
            async with asyncio.timeout(60):
                while not records_of(caplog):  # noqa: ASYNC110 - logging has no events
                    await asyncio.sleep(0.01)
                idle.move(1)
                await ask(reader, writer, b"both ends are at the other relay")
            writer.close()

    run(main(), uvloop.new_event_loop)
    assert len(records_of(caplog)) == 2  # of the service, too


@pytest.mark.usefixtures("short_wait")
@pytest.mark.parametrize("carrier", ["poll", "link"])
def test_an_acceptor_that_is_moved_ends_its_connections_soon(carrier: str) -> None:
    ended: asyncio.Queue[Exception | None] = asyncio.Queue()

    async def serve(reader: StreamReader, writer: StreamWriter) -> None:
        try:
            while data := await reader.read(1 << 16):
                writer.write(data)
            ended.put_nowait(None)
        except OSError as error:
            ended.put_nowait(error)

    async def main() -> None:
        async with (
            two_relays() as (one, other, balancer),
            balancer.attach(carrier) as service,
            one.attach("ann", carrier="poll", linger=0.0) as client,
        ):
            await service.start_server(serve, "echo")
            _, writer = await say_and_hear(client)
            let_run(other)
            balancer.move(1)
            async with asyncio.timeout(60):
                assert LEFT in str(await ended.get())
            writer.close()

    run(main(), uvloop.new_event_loop)
