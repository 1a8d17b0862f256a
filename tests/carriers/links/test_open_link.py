"""A link that carries alone: how much may leave on it without receipts (PROTOCOL 8.7)."""

from __future__ import annotations

import asyncio
from typing import Any, cast

from tunnel.carriers.links.dialed_link import DialedLink
from tunnel.carriers.links.open_link import OpenLink
from tunnel.exchange.config import KIB
from tunnel.wire import Packet, PacketType

MS = 1_000
SECOND = 1_000_000


class Wire(asyncio.Transport):
    """A transport that takes everything."""

    def write(self, data: Any) -> None:
        """Take it."""

    def writelines(self, list_of_data: Any) -> None:
        """Take it."""


def lone() -> OpenLink:
    """A link whose first receipt came after 10 ms."""
    link = DialedLink(cast("Any", None), lambda: 0, lambda _: None)
    link._transport = Wire()
    link.is_open = True
    opened = OpenLink(link, "link")
    send(opened, KIB, 0)
    receipt(opened, 10 * MS)
    return opened


def send(opened: OpenLink, size: int, now: int) -> None:
    opened.send([Packet(PacketType.DATA, 1, 2, 1, bytes(size - 24))], 1, now)


def receipt(opened: OpenLink, now: int) -> None:
    """Let a receipt for everything come."""
    state = opened.link.state
    opened.take_receipts(state._take_receipts(state._sent), now)


def test_a_link_that_carries_alone_has_room_until_its_window_is_full() -> None:
    link = lone()
    send(link, 256 * KIB - 1, SECOND)
    assert link.room == link.pace.batch_bytes > 0
    send(link, KIB, SECOND)
    assert link.room == 0


def test_receipts_that_come_late_shrink_the_window() -> None:
    link = lone()
    send(link, 256 * KIB, SECOND)
    assert link.room == 0
    receipt(link, 5 * SECOND)
    send(link, 128 * KIB, 5 * SECOND)
    assert link.room == 0
    receipt(link, 5 * SECOND + 20 * MS)
    send(link, 128 * KIB, 6 * SECOND)
    assert link.room > 0


def test_batches_that_were_given_up_still_fill_the_path_until_their_receipts_come() -> None:
    link = lone()
    send(link, 256 * KIB, SECOND)
    link.give_up()
    assert link.room == 0
    receipt(link, 5 * SECOND)
    send(link, 128 * KIB, 5 * SECOND)
    assert link.room == 0


def test_while_batches_that_were_given_up_leave_no_room_their_receipts_are_awaited() -> None:
    """Otherwise a road that is cut just then would be doubted only after its next probe."""
    link = lone()
    for _ in range(8):
        send(link, 32 * KIB, SECOND)
    assert link.room == 0
    link.give_up()
    state = link.link.state
    link.take_receipts(state._take_receipts(2), 4 * SECOND)  # of the first: the window shrinks
    assert (link.room, link.waiting_bytes) == (0, 224 * KIB)
    link.take_receipts(state._take_receipts(8), 4 * SECOND + MS)
    assert link.room > 0
    assert link.waiting_bytes == 0
    send(link, KIB, 5 * SECOND)
    assert link.waiting_bytes == KIB
    receipt(link, 6 * SECOND)
    assert link.waiting_bytes == 0


def test_what_an_application_sends_now_and_then_shows_no_high_rate() -> None:
    """One receipt covers what was sent in 25 ms, and most of it was sent long before the newest."""
    link = lone()
    send(link, 2 * KIB, SECOND)
    send(link, KIB, SECOND + 24 * MS)
    receipt(link, SECOND + 25 * MS)
    send(link, 256 * KIB, 2 * SECOND)
    assert link.room == 0


def test_a_time_without_batches_lowers_no_rate() -> None:
    link = lone()
    send(link, 64 * KIB, 9 * SECOND)
    receipt(link, 9 * SECOND + 100 * MS)
    send(link, 1024 * KIB, 10 * SECOND)
    assert link.room > 0
