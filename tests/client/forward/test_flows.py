"""Flows whose target does not answer. tests/client/forward/test_datagrams.py has real targets."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import pytest

from tests.support.loops import in_loop
from tunnel import Attachment
from tunnel_client.forward.flows import Flows
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address


class Silent:
    """An attachment whose targets never answer. `asked`: the host and port of each connection."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int]] = []
        self.connecting = self.most = 0

    def add_error_listener(self, listener: object) -> None:
        """Do nothing: no exchange fails."""

    async def create_connection(
        self,
        factory: Any,
        host: str,
        port: int,
        *,
        timeout: float | None,  # noqa: ASYNC109
    ) -> None:
        self.asked.append((host, port))
        self.connecting += 1
        self.most = max(self.most, self.connecting)
        try:
            async with asyncio.timeout(timeout):
                await asyncio.get_running_loop().create_future()
        finally:
            self.connecting -= 1


def test_a_target_that_never_answers_is_given_up_and_tried_again_later(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel_client.forward.flows._CONNECT_S", 0.01)
    monkeypatch.setattr("tunnel_client.forward.flows._DEAD_S", 0.01)
    where = Address("db.internal", 53)

    @in_loop
    async def scenario() -> None:
        silent = Silent()
        attachment = cast(Attachment, silent)
        traffic = Traffic(attachment)
        flows = Flows(attachment, traffic)
        async with asyncio.timeout(10):
            for tries in (1, 2):
                flows.send("a", where, b"lost", lambda datagram: None)
                assert len(flows) == 1
                while len(flows):  # noqa: ASYNC110 - the flow ends by itself, without an event
                    await asyncio.sleep(0.001)
                assert (silent.asked, traffic.failed) == ([("udp:db.internal", 53)] * tries, tries)
        await flows.close()

    scenario()


@in_loop
async def test_two_users_flows_that_come_and_go_leave_no_connects_and_no_memory_behind() -> None:
    """A local program sends from ever new ports. Another source's flows stay and connect in their turn."""
    silent, where = Silent(), Address("db.internal", 53)
    attachment = cast(Attachment, silent)
    flows = Flows(attachment, Traffic(attachment))
    victim = ("127.0.0.1", 1)
    for port in range(200):
        flows.send(("127.0.0.66", port), where, bytes(60_000), lambda datagram: None, "127.0.0.66")
    await asyncio.sleep(0.001)
    assert (silent.connecting, len(asyncio.all_tasks())) == (32, 201)
    flows.send(victim, Address("victim.internal", 53), b"hello", lambda datagram: None, "127.0.0.1")
    await asyncio.sleep(0.001)
    assert silent.asked[-1] == ("udp:victim.internal", 53)
    for port in range(200, 3000):
        flows.send(("127.0.0.66", port), where, bytes(60_000), lambda datagram: None, "127.0.0.66")
    await asyncio.sleep(0.001)
    assert (len(flows), len(asyncio.all_tasks())) == (256, 257)
    assert victim in flows._flows
    assert (silent.connecting, silent.most) == (33, 33)
    await flows.close()
    assert (silent.connecting, len(asyncio.all_tasks())) == (0, 1)


@in_loop
async def test_the_task_that_connects_a_flow_ends_with_the_flow() -> None:
    silent, where = Silent(), Address("db.internal", 53)
    attachment = cast(Attachment, silent)
    flows = Flows(attachment, Traffic(attachment), flows_max=2, idle_seconds=0.05)
    for key in "abc":
        flows.send(key, where, b"lost", lambda datagram: None)
        await asyncio.sleep(0.001)
    assert (len(flows), silent.connecting) == (2, 2)  # c replaced a, whose connect has ended
    while len(flows):  # noqa: ASYNC110 - the flows end by themselves, without an event
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.001)
    assert (silent.connecting, len(asyncio.all_tasks())) == (0, 1)
    await flows.close()


@in_loop
async def test_datagrams_that_wait_for_a_connect_are_few() -> None:
    silent = Silent()
    attachment = cast(Attachment, silent)
    flows = Flows(attachment, Traffic(attachment))
    for _ in range(100):
        flows.send("a", Address("db.internal", 53), bytes(10_000), lambda datagram: None)
    side = flows._flows["a"].side
    assert (side._queue_bytes, side.dropped) == (60_000, 94)
    await flows.close()
