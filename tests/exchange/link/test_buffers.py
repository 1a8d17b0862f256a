"""The buffers into which a link's bytes are read."""

from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.exchange.link.buffers import BufferPool, LinkReader

KIB = 1024
STEP = 64 * KIB
SHARED = 128 * KIB


def read(intake: LinkReader, data: bytes, wanted: int, behind: int = 0) -> None:
    """Read these bytes into the space that the reader gives."""
    space = intake.space(wanted, behind)
    assert len(space) >= len(data)
    space[: len(data)] = data
    intake.on_filled(len(data))


def held(intake: LinkReader) -> int:
    """Return the number of bytes that were read and not yet taken."""
    return intake.end - intake.start


def taken(intake: LinkReader, size: int) -> memoryview:
    """Take bytes that were read."""
    start = intake.start
    intake.start += size
    assert intake.start <= intake.end
    return intake.view[start : intake.start]


def size_of(view: memoryview) -> int:
    """Return the size of the buffer behind a view."""
    return len(cast(bytearray, view.obj))


# buffers


def test_sizes_are_rounded_up() -> None:
    buffers = BufferPool()
    assert [len(buffers.get(size)) for size in (1, STEP, STEP + 1)] == [STEP, STEP, 2 * STEP]


def test_a_buffer_without_views_is_used_again() -> None:
    buffers = BufferPool()
    first = buffers.get(STEP)
    first[0] = 7
    other_size = buffers.get(2 * STEP)
    del first
    again = buffers.get(STEP)
    assert (again[0], len(again)) == (7, STEP)
    again[STEP - 1] = 8
    assert buffers.get(2 * STEP).obj is not other_size.obj


@pytest.mark.parametrize("keep", [lambda view: view, lambda view: view[5:6], lambda view: view[5:6].cast("c")])
def test_a_buffer_with_a_view_is_left_alone(keep: Callable[[memoryview], object]) -> None:
    buffers = BufferPool()
    first = buffers.get(STEP)
    first[0] = 7
    kept = keep(first)
    del first
    assert buffers.get(STEP)[0] == 0
    del kept
    assert {view[0] for view in [buffers.get(STEP), buffers.get(STEP)]} == {0, 7}


def test_a_pool_keeps_no_more_than_its_limit() -> None:
    buffers = BufferPool(2 * STEP)
    for mark in (1, 2, 3):
        marked = [buffers.get(STEP) for _ in range(mark)]
        for buffer in marked:
            buffer[0] = mark
        del buffer
    del marked
    found = [buffers.get(STEP) for _ in range(3)]
    assert [buffer[0] for buffer in found] == [3, 3, 0]


def test_the_buffer_used_last_is_forgotten_last() -> None:
    buffers = BufferPool(3 * STEP)
    held = [buffers.get(STEP) for _ in range(3)]
    for mark, buffer in enumerate(held, 1):
        buffer[0] = mark
    del buffer
    held.clear()
    assert buffers.get(STEP)[0] == 1
    large = buffers.get(2 * STEP)  # beside it, there is room for one of the three
    assert [buffers.get(STEP)[0], len(large)] == [1, 2 * STEP]


def test_a_buffer_larger_than_the_limit_is_not_kept() -> None:
    buffers = BufferPool(STEP)
    buffers.get(STEP)[0] = 1
    buffers.get(2 * STEP)[0] = 2
    assert buffers.get(2 * STEP)[0] == 0
    assert buffers.get(STEP)[0] == 1


# the reader


def test_small_pieces_share_a_buffer_and_are_not_copied() -> None:
    intake = LinkReader(BufferPool())
    read(intake, b"onetwothree", 3)
    one, two = taken(intake, 3), taken(intake, 3)
    assert (bytes(one), bytes(two), held(intake)) == (b"one", b"two", 5)
    assert one.obj is two.obj
    read(intake, b"four", 9)
    assert bytes(taken(intake, 9)) == b"threefour"
    assert held(intake) == 0


def busy() -> LinkReader:
    """Return a reader that has filled its first buffer."""
    intake = LinkReader(BufferPool())
    size = len(intake.space(24, 24))
    intake.on_filled(size)
    taken(intake, size)
    return intake


def test_a_quiet_link_has_a_small_buffer_until_a_read_fills_it() -> None:
    intake = LinkReader(BufferPool())
    for _ in range(100):
        assert KIB <= len(intake.space(24, 24)) <= 4 * KIB
        intake.on_filled(KIB)
        taken(intake, KIB)
    assert len(busy().space(24, 24)) == SHARED


def test_quiet_links_share_a_buffer_of_which_no_packet_keeps_a_part() -> None:
    buffers = BufferPool()
    intake, other = LinkReader(buffers), LinkReader(buffers)
    shared = intake.space(24, 24).obj
    read(intake, b"one and a part", 24)
    one = taken(intake, 3)
    assert other.space(24, 24).obj is shared
    read(other, b"XXXXXXXXXXXXXXXXXXXXXXX", 24)
    assert bytes(one) == b"one"
    assert one.obj is not shared
    assert size_of(one) < KIB
    assert intake.space(24, 24).obj is not shared  # it has a part of a piece
    read(intake, b", too", 24)
    assert bytes(taken(intake, 16)) == b" and a part, too"
    assert intake.space(24, 24).obj is shared


def test_a_link_is_quiet_again_after_small_reads_in_a_row() -> None:
    intake = busy()
    for size in [KIB] * 15 + [KIB + 1] + [KIB] * 16:
        assert len(intake.space(24, 24)) >= 16 * KIB
        intake.on_filled(size)
        if size == KIB:
            taken(intake, size)
    assert len(intake.space(24, 24)) >= 16 * KIB  # a part of a piece is still there
    taken(intake, KIB + 1)
    assert len(intake.space(24, 24)) == 4 * KIB


def test_a_large_piece_makes_a_link_busy() -> None:
    intake = LinkReader(BufferPool())
    size = len(intake.space(SHARED, 24))
    intake.on_filled(size - 1)
    taken(intake, size - 1)
    assert len(intake.space(24, 24)) >= 16 * KIB


def test_a_shared_buffer_is_left_when_it_has_little_room() -> None:
    intake = busy()
    assert len(intake.space(24, 24)) == SHARED
    intake.on_filled(SHARED - 16 * KIB)
    taken(intake, SHARED - 16 * KIB - 2)
    assert len(intake.space(24, 24)) == 16 * KIB
    read(intake, b"x", 24)
    assert len(intake.space(24, 24)) == SHARED - 3
    assert bytes(taken(intake, 3)) == b"\0\0x"


def test_a_piece_that_does_not_fit_a_shared_buffer_begins_another() -> None:
    intake = busy()
    intake.space(24, 24)
    intake.on_filled(SHARED - 20 * KIB)
    taken(intake, SHARED - 20 * KIB - 1)
    assert len(intake.space(20 * KIB + 1, 24)) == 20 * KIB
    assert len(intake.space(20 * KIB + 2, 24)) == SHARED - 1


def test_a_large_piece_has_a_buffer_of_its_own_with_room_for_the_next_header() -> None:
    intake = LinkReader(BufferPool())
    read(intake, b"ab", 24)
    space = intake.space(SHARED, 24)
    assert len(space) == SHARED - 2 + 24
    assert size_of(space) == SHARED + STEP
    assert len(intake.space(32 * KIB, 24)) == SHARED + STEP - 2  # 32 KiB are not large


def test_a_large_piece_that_fits_a_shared_buffer_stays_there_alone() -> None:
    intake = busy()
    read(intake, b"ab", 24)
    space = intake.space(32 * KIB + 1, 24)
    assert len(space) == 32 * KIB - 1 + 24
    assert size_of(space) == SHARED


def test_bytes_read_of_a_large_piece_move_to_its_buffer_once() -> None:
    intake = LinkReader(BufferPool())
    read(intake, bytes(range(100)), 24)
    before = taken(intake, 10)
    wanted = 200 * KIB
    space = intake.space(wanted, 24)
    assert len(space) == wanted - 90 + 24
    intake.on_filled(wanted - 91)
    last = intake.space(wanted, 24)
    assert last.obj is space.obj
    assert len(last) == 25
    last[:] = b"!" * 25
    intake.on_filled(25)
    piece = taken(intake, wanted)
    assert bytes(piece[:90]) == bytes(range(10, 100))
    assert bytes(piece[-1:]) == b"!"
    assert piece.obj is space.obj
    assert (bytes(before), held(intake)) == (bytes(range(10)), 24)


def test_a_large_piece_gets_a_new_buffer_after_much_was_taken() -> None:
    intake = busy()
    intake.space(24, 24)
    intake.on_filled(60 * KIB + 2)
    taken(intake, 60 * KIB)
    space = intake.space(100 * KIB, 24)
    assert (len(space), size_of(space)) == (100 * KIB - 2 + 24, SHARED)
    intake.on_filled(100 * KIB - 2)
    assert len(taken(intake, 100 * KIB)) == 100 * KIB


def test_a_very_large_piece_moves_when_there_is_too_little_room_for_a_read() -> None:
    intake = LinkReader(BufferPool())
    wanted = 4 * 1024 * KIB
    first = intake.space(wanted, 24)
    intake.on_filled(len(first) - 16 * KIB)
    last = intake.space(wanted, 24)
    assert (last.obj is first.obj, len(last)) == (True, 16 * KIB)
    intake.on_filled(1)
    held = len(first) - 16 * KIB + 1
    assert size_of(intake.space(wanted, 24)) == -(-2 * held // STEP) * STEP


def test_the_buffer_of_a_very_large_piece_grows_as_its_bytes_arrive() -> None:
    intake = LinkReader(BufferPool())
    wanted = 16 * 1024 * KIB
    sizes: list[int] = []
    while held(intake) < wanted:
        space = intake.space(wanted, 24)
        if not sizes or size_of(space) != sizes[-1]:
            sizes.append(size_of(space))
        step = min(len(space), wanted - held(intake))
        space[:step] = bytes([len(sizes)]) * step
        intake.on_filled(step)
    mib = 1024 * KIB
    assert sizes[:3] == [mib + STEP, 2 * (mib + STEP), 4 * (mib + STEP)]
    piece = taken(intake, wanted)
    assert (piece[0], piece[mib + STEP], piece[-1]) == (1, 2, len(sizes))


@given(st.lists(st.tuples(st.integers(1, 100_000), st.integers(1, 60_000)), max_size=12))
def test_pieces_equal_the_bytes_read_whatever_their_sizes(pieces: list[tuple[int, int]]) -> None:
    intake = LinkReader(BufferPool(4 * STEP))
    stream = b"".join(bytes([index]) * size for index, (size, _) in enumerate(pieces))
    offset = 0
    found = []
    for size, portion in pieces:
        while held(intake) < size:
            space = intake.space(size, 24)
            step = min(portion, len(space), len(stream) - offset)
            space[:step] = stream[offset : offset + step]
            intake.on_filled(step)
            offset += step
        found.append(taken(intake, size))
    assert list(map(bytes, found)) == [bytes([index]) * size for index, (size, _) in enumerate(pieces)]


def test_a_released_reader_gives_its_buffer_to_the_next_one() -> None:
    """The next reader gets it even if the released one lives on."""
    buffers = BufferPool()
    intake, other = LinkReader(buffers), LinkReader(buffers)
    read(intake, b"a part", SHARED)
    before = intake.space(SHARED, 0).obj
    assert other.space(SHARED, 0).obj is not before
    intake.release()
    assert held(intake) == 0
    assert LinkReader(buffers).space(SHARED, 0).obj is before
