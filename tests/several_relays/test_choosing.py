"""Which relay a new connection uses, and what the loss of one costs."""

from __future__ import annotations

import asyncio

import pytest

from tests.several_relays.rig import AWAY, Exit, Silent, at, greeting, relays, several, until_answers
from tests.support.loops import in_loop, until
from tunnel import DeniedError, RefusedError, RejectReason, UnreachableError
from tunnel.streams.transport import MadeTransport


@in_loop
async def test_new_connections_use_the_first_relay_that_answers_and_return_to_it() -> None:
    async with relays(b"one", b"two") as (first, second), at(first, second) as client:
        assert await greeting(client) == b"one"
        assert second.core.switch.stats().attachments == 1  # the exit alone: the client has needed only the first relay
        reader, writer = await client.open_connection("db", 5432)
        assert await reader.readexactly(3) == b"one"
        first.fault = lambda message: AWAY
        await until_answers(client, False, True)
        assert client.is_attached
        assert await greeting(client) == b"two"
        first.fault = lambda message: None
        await until_answers(client, True, True)
        assert await greeting(client) == b"one"
        writer.write(b"still here")
        assert await reader.readexactly(10) == b"still here"


@pytest.mark.parametrize("kind", ["client", "exit", "service"])
@in_loop
async def test_it_is_said_which_relay_new_connections_use_where_any_are_opened(
    kind: str, caplog: pytest.LogCaptureFixture
) -> None:
    """To the operator of an exit or a service, it would say something that is not true."""
    async with relays(b"", b"") as (first, second):
        handler = Exit(b"out") if kind == "exit" else None
        async with at(first, second, user="exit" if kind == "exit" else "bob", exit_handler=handler) as endpoint:
            if kind == "service":
                await endpoint.start_server(Exit(b"in.").serve, "reports")
            await until_answers(endpoint, *([True] if kind == "client" else [True, True]))
            first.fault = lambda message: AWAY
            await until_answers(endpoint, False, True)
    said = [record.getMessage() for record in caplog.records if "new connections use" in record.getMessage()]
    assert said == ["new connections use the relay r1 now, and no longer r0"] * (kind == "client")


class Hooks:
    """A connection listener and a collector of byte counts that note what they are told."""

    def __init__(self) -> None:
        self.changes: list[str] = []
        self.filled = 0
        self.written = 0

    def disconnected(self, reason: str) -> None:
        self.changes.append("away")

    def reconnected(self) -> None:
        self.changes.append("back")

    def increment_out_bytes(self, size_bytes: int) -> None:
        self.filled += size_bytes

    def register_write(self, size_bytes: int) -> None:
        self.written += size_bytes


@in_loop
async def test_the_hooks_hear_of_all_relays_together() -> None:
    hooks = Hooks()
    async with relays(b"one", b"two") as (first, second), at(first, second) as client:
        client.add_connection_listener(hooks)
        client.set_statistics_collector(hooks)
        await greeting(client)
        counted = hooks.filled, hooks.written
        assert min(counted) > 0
        first.fault = lambda message: AWAY
        await until_answers(client, False, True)
        assert await greeting(client) == b"two"
        assert hooks.filled > counted[0]
        assert hooks.changes in ([], ["away", "back"])  # the second relay was not attached to before it was needed
        hooks.changes.clear()
        second.fault = lambda message: AWAY
        await until_answers(client, False, False)
        assert hooks.changes == ["away"]
        second.fault = lambda message: None
        await until_answers(client, False, True)
        assert hooks.changes == ["away", "back"]


@pytest.mark.usefixtures("hurry")
@in_loop
async def test_a_relay_that_is_silent_at_the_start_keeps_nobody_waiting() -> None:
    async with relays(b"one", b"two") as (first, second):
        first.fault = lambda message: AWAY
        async with at(first, second) as client:
            assert await greeting(client) == b"two"
            assert [(one.url, one.attached, one.is_used) for one in client.stats().relays] == [
                ("r0", False, False),
                ("r1", True, True),
            ]


@in_loop
async def test_while_no_relay_answers_none_is_in_use() -> None:
    async with relays(b"one", b"two") as (first, second), at(first, second) as client:
        assert await greeting(client) == b"one"
        first.fault = second.fault = lambda message: AWAY
        await until_answers(client, False, False)
        assert [one.is_used for one in client.stats().relays] == [False, False]
        second.fault = lambda message: None
        await until_answers(client, False, True)
        assert [one.is_used for one in client.stats().relays] == [False, True]


@in_loop
async def test_a_connection_that_waits_at_a_relay_that_stops_answering_goes_to_another() -> None:
    async with (
        relays(b"", b"two") as (first, second),
        first.attach("exit", exit_handler=Silent(), linger=0.1),
        at(first, second) as client,
    ):
        opening = asyncio.ensure_future(greeting(client))
        await until(lambda: first.core.switch.stats().routes_pending)
        first.fault = lambda message: AWAY
        assert await opening == b"two"


@pytest.mark.usefixtures("hurry")
@in_loop
async def test_an_idle_endpoint_that_loses_its_relay_asks_all_others() -> None:
    async with relays(b"one", b"two", b"3rd", b"4th") as found, at(*found) as client:
        for one in found[:3]:
            one.fault = lambda message: AWAY
        await until_answers(client, False, False, False, True)
        assert client.is_attached


@pytest.mark.usefixtures("hurry")
@in_loop
async def test_a_connection_that_waits_at_a_lost_relay_goes_to_the_third() -> None:
    async with (
        relays(b"", b"two", b"3rd") as (first, second, third),
        first.attach("exit", exit_handler=Silent(), linger=0.1),
        at(first, second, third) as client,
    ):
        opening = asyncio.ensure_future(greeting(client))
        await until(lambda: first.core.switch.stats().routes_pending)
        first.fault = second.fault = lambda message: AWAY
        assert await opening == b"3rd"


@pytest.mark.usefixtures("hurry")
@in_loop
async def test_a_connection_without_an_exit_at_the_first_relay_passes_over_one_that_is_silent() -> None:
    async with relays(b"", b"two", b"3rd") as (first, second, third), at(first, second, third) as client:
        second.fault = lambda message: AWAY
        assert await greeting(client) == b"3rd"


@in_loop
async def test_no_further_relay_is_asked_while_one_answers() -> None:
    async with relays(b"one", b"two", b"3rd") as found, at(*found) as client:
        found[0].fault = lambda message: AWAY
        await until_answers(client, False, True)
        assert await greeting(client) == b"two"
        assert len(client.stats().relays) == 2


@in_loop
async def test_a_relay_without_an_exit_is_passed_over() -> None:
    async with relays(b"", b"two") as (first, second), at(first, second) as client:
        assert await greeting(client) == b"two"


@in_loop
async def test_a_relay_without_the_service_is_passed_over() -> None:
    async with (
        relays(b"", b"") as (first, second),
        second.attach("ann", linger=0.1) as owner,
        at(first, second) as client,
    ):
        await owner.start_server(Exit(b"two").serve, "reports")
        assert await greeting(client, "reports", None) == b"two"


@in_loop
async def test_a_relay_that_drains_comes_last() -> None:
    async with relays(b"one", b"two") as (first, second), at(first, second) as client:
        assert await greeting(client) == b"one"
        for _ in first.core.drain():
            pass
        assert await greeting(client) == b"two"
        assert [one.trouble[:26] for one in client.stats().relays] == ["the relay is about to stop", ""]
        assert await greeting(client) == b"two"
        counters = first.core.switch.stats().counters
        assert counters.connects_refused <= 1  # not asked again, once it has said that it drains


@in_loop
async def test_what_the_target_or_the_rules_refuse_is_asked_of_no_other_relay() -> None:
    async with relays(b"one", b"two") as (first, second), at(first, second) as client:
        with pytest.raises(RefusedError) as refused:
            await greeting(client, "closed")
        assert refused.value.reason is RejectReason.REFUSED
        with pytest.raises(DeniedError):
            await greeting(client, "secret")
        assert second.core.switch.stats().counters.connects == 0


@in_loop
async def test_without_an_exit_anywhere_the_first_relay_says_why() -> None:
    async with relays(b"", b"") as (first, second), at(first, second) as client:
        with pytest.raises(RefusedError, match="no exit is attached"):
            await greeting(client)
        assert second.core.switch.stats().counters.connects == 1


@pytest.mark.parametrize(("seconds", "is_over"), [(None, False), (1000.0, False), (0.01, True)])
@in_loop
async def test_the_time_for_a_connection_is_that_for_all_relays_together(
    seconds: float | None, is_over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with relays(b"", b"") as found, at(*found) as client:
        given: list[float | None] = []

        async def refused(host: str, port: int | None, limit_s: float | None) -> MadeTransport:
            given.append(limit_s)
            await asyncio.sleep(0.02)
            raise RefusedError("no exit", RejectReason.NO_EXIT)

        async def late(host: str, port: int | None, limit_s: float | None) -> MadeTransport:
            given.append(limit_s)
            raise TimeoutError(f"no answer within {limit_s} s")

        for place, connect in zip(several(client)._places, (refused, late), strict=True):
            monkeypatch.setattr(place.endpoint, "connect", connect)
        said = f"^db:5432: no answer within {seconds:g} s$" if seconds is not None else "^no answer within None s$"
        with pytest.raises(TimeoutError, match=said):
            await several(client).connect("db", 5432, seconds)
    first, second = given
    if seconds is None or first is None or second is None:
        assert first is second is seconds
    else:
        assert second < first <= seconds
        assert (second == 0) == is_over


@in_loop
async def test_the_first_relay_says_itself_that_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    async with relays(b"", b"") as found, at(*found) as client:

        async def late(host: str, port: int | None, limit_s: float | None) -> MadeTransport:
            raise TimeoutError("the exit does not answer")

        loop = asyncio.get_running_loop()
        monkeypatch.setattr(loop, "time", lambda: 7.0)
        monkeypatch.setattr(several(client)._places[0].endpoint, "connect", late)
        with pytest.raises(TimeoutError, match="the exit does not answer"):
            await several(client).connect("db", 5432, 0.5)
        monkeypatch.undo()


@in_loop
async def test_a_relay_that_drains_while_another_one_serves_is_no_reason_to_attach_to_a_third() -> None:
    async with relays(b"one", b"two", b"") as found, at(*found) as client:
        places = several(client)._places
        several(client)._start_next()
        await until(lambda: places[1].is_present)
        several(client)._stop_seeking()  # as if the first one had answered long ago
        for _ in found[0].core.drain():
            pass
        await until(lambda: places[0].endpoint.is_draining)
        assert await greeting(client) == b"two"
        assert places[2].starting is None


@pytest.mark.usefixtures("hurry")
@in_loop
async def test_a_refusal_does_not_wait_long_for_a_relay_that_does_not_answer() -> None:
    async with relays(b"", b"two") as (first, second), at(first, second) as client:
        second.fault = lambda message: AWAY
        with pytest.raises(RefusedError, match="no exit is attached"):
            await greeting(client)


@pytest.mark.usefixtures("hurry")
@in_loop
async def test_a_refusal_does_not_wait_for_a_relay_that_stops_answering_while_it_is_asked() -> None:
    async with relays(b"", b"two") as (first, second), at(first, second) as client:
        assert await greeting(client) == b"two"  # so it is attached to both
        second.fault = lambda message: AWAY  # which the endpoint does not know yet
        with pytest.raises(RefusedError, match="no exit is attached"):
            async with asyncio.timeout(20):
                await greeting(client)


@in_loop
async def test_without_any_relay_the_attachment_names_each_of_them() -> None:
    async with relays(b"", b"") as found:
        for one in found:
            one.fault = lambda message: AWAY
        with pytest.raises(UnreachableError, match=r"no relay answers within 1\.5 s \(r0: .*; r1: "):
            await at(*found, user="exit", exit_handler=Exit(b"out"), attach_timeout=1.5).start()
