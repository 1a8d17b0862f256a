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
        async with asyncio.timeout(timeout):
            await asyncio.get_running_loop().create_future()


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
