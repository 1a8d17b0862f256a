"""Both halves of a link (section 8)."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.exchange.link.buffers import BufferPool
from tunnel.exchange.link.state import LinkState
from tunnel.wire import LINK_HEADER_SIZE, Buffer, LinkHeader, decode_link_header, encode_link_header

MS = 1_000


def joined(buffers: list[Buffer]) -> bytes:
    return b"".join(buffers)


def batch(number: int, payload: bytes = b"", received: int = 0) -> bytes:
    return encode_link_header(LinkHeader(number, received, len(payload))) + payload


@given(
    st.lists(st.binary(max_size=60), max_size=12),
    st.lists(st.integers(1, 50), min_size=1, max_size=20),
)
def test_batches_arrive_whole_and_in_order_however_they_are_cut(payloads: list[bytes], portions: list[int]) -> None:
    ours, theirs = LinkState(), LinkState()
    stream = b"".join(joined(ours.send([payload], token)) for token, payload in enumerate(payloads))
    got: list[bytes] = []
    offset = 0
    for index in range(len(stream) + 1):
        size = portions[index % len(portions)]
        got += map(bytes, theirs.receive(stream[offset : offset + size], 0).batches)
        offset += size
    assert got == payloads
    assert not theirs.closed
    receipts = ours.receive(joined(theirs.handle_timeout(25 * MS)), 0).receipts
    assert receipts == list(range(len(payloads)))
    assert (ours.tokens_unreceipted, ours.unreceipted_bytes) == ([], 0)


def test_large_batches_stay_in_the_buffers_that_they_were_read_into() -> None:
    link = LinkState()
    large = bytes(range(256)) * 1024
    first, second = batch(1, b"payload"), batch(2, large)
    space = link.space()
    space[: len(first)] = first
    (got,) = link.on_filled(len(first), 0).batches
    assert isinstance(got, memoryview)
    assert bytes(got) == b"payload"
    assert got.obj is not space.obj  # the buffer of all quiet links
    link.space()[:LINK_HEADER_SIZE] = second[:LINK_HEADER_SIZE]
    assert link.on_filled(LINK_HEADER_SIZE, 0).batches == []
    rest = link.space()
    assert len(rest) == len(large) + LINK_HEADER_SIZE  # room for this batch and the next header only
    rest[: len(large)] = large
    (got,) = link.on_filled(len(large), 0).batches
    assert isinstance(got, memoryview)
    assert got.obj is rest.obj
    assert got == large


def test_links_may_share_their_memory() -> None:
    buffers = BufferPool()
    first, second = LinkState(buffers=buffers), LinkState(buffers=buffers)
    home = id(_space_of_large(first).obj)
    del first
    assert id(_space_of_large(second).obj) == home
    assert id(_space_of_large(LinkState()).obj) != home


def _space_of_large(link: LinkState) -> memoryview:
    """Return where the link reads a batch that is too large for a shared buffer."""
    header = LinkState().send([bytes(100_000)], 1)[0]
    link.space()[: len(header)] = header
    assert not link.on_filled(len(header), 0).batches
    return link.space()


def test_buffers_that_leave_are_not_copied() -> None:
    payload = bytes(100)
    header, same = LinkState().send([payload], 1)
    assert len(header) == LINK_HEADER_SIZE
    assert same is payload


def test_every_batch_carries_the_receipt() -> None:
    ours, theirs = LinkState(), LinkState()
    theirs.receive(joined(ours.send([b"abc"], 7)), 0)
    assert (ours.tokens_unreceipted, ours.unreceipted_bytes) == ([7], 3)
    found = ours.receive(joined(theirs.send([b"x"], 8)), 5 * MS)
    assert (found.receipts, list(map(bytes, found.batches))) == ([7], [b"x"])
    assert theirs.next_timeout() is None


def test_a_lone_receipt_leaves_at_the_latest_25_ms_after_a_batch() -> None:
    theirs = LinkState()
    assert theirs.handle_timeout(0) == []
    theirs.receive(batch(1, b"a"), 100)
    theirs.receive(batch(2, b"b"), 10 * MS)
    assert theirs.next_timeout() == 25 * MS + 100
    assert theirs.handle_timeout(25 * MS) == []
    assert joined(theirs.handle_timeout(25 * MS + 100)) == batch(0, received=2)
    assert theirs.next_timeout() is None


def test_a_lone_receipt_is_not_receipted_itself() -> None:
    ours = LinkState()
    ours.send([b"a"], 1)
    assert ours.receive(batch(0, received=1), 0).receipts == [1]
    assert ours.next_timeout() is None


def test_after_many_bytes_the_receipt_does_not_wait() -> None:
    theirs = LinkState()
    theirs.receive(batch(1, bytes(256 * 1024)), 7)
    assert theirs.next_timeout() == 7


def test_an_empty_batch_counts() -> None:
    theirs = LinkState()
    assert theirs.receive(batch(1), 0).batches == [b""]
    assert joined(theirs.handle_timeout(25 * MS)) == batch(0, received=1)


def test_the_first_of_many_empty_batches_closes_a_link_that_takes_none() -> None:
    """Receipts are empty batches with the number 0, and stay valid. A read of 128 KiB can hold 5,000 empty batches."""
    theirs = LinkState(takes_empty=False)
    assert theirs.receive(batch(0) + batch(1, b"a"), 0).batches == [b"a"]
    assert theirs.receive(b"".join(map(batch, range(2, 100))), 0).batches == []
    assert theirs.closed == "an empty batch"


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"GET / HTTP/1.1\r\nHost: example\r\n", "does not come from a tunnel link"),
        (batch(1, b"a")[:23] + b"\xff", "damaged"),
        (batch(2), "batch 2 came, but the next one must be 1"),
        (batch(1, bytes(101)), "a batch of 101 bytes is above the limit of 100"),
        (batch(0, b"a"), "batch 0 came, but the next one must be 1"),
        (batch(1, received=1), "a receipt for batch 1 came, but only 0 to 0 are possible"),
    ],
)
def test_invalid_input_closes_a_link_with_the_reason(data: bytes, why: str) -> None:
    link = LinkState(length_max=100)
    found = link.receive(data + batch(1, b"unheard"), 0)
    assert (found.batches, found.receipts) == ([], [])
    assert why in link.closed
    assert link.receive(batch(1, b"unheard"), 0).batches == []
    with pytest.raises(ValueError, match="the link is closed"):
        link.send([b"a"], 1)


def test_a_receipt_lower_than_an_earlier_one_closes_the_link() -> None:
    link = LinkState()
    link.send([b"a"], 1)
    link.receive(batch(0, received=1), 0)
    link.receive(batch(0, received=0), 0)
    assert link.closed == "a receipt for batch 0 came, but only 1 to 1 are possible"


def test_a_closed_link_names_unreceipted_batches_and_sends_nothing_more() -> None:
    link = LinkState()
    for token in (1, 2, 3):
        link.send([b"a"], token)
    link.receive(batch(1, b"a", received=1) + b"x" * 24, 0)
    assert link.closed
    assert link.tokens_unreceipted == [2, 3]
    assert link.handle_timeout(25 * MS) == []


def test_a_link_ends_when_its_numbers_are_used_up() -> None:
    link = LinkState()
    link._sent = 2**32 - 2
    assert joined(link.send([b"a"], 1)) == batch(2**32 - 1, b"a")
    assert link.closed == "the batch numbers of the link are used up: open another link"


@pytest.mark.parametrize("receipted_before", [False, True])
def test_bytes_up_to_256_kib_are_counted_from_the_last_receipt(receipted_before: bool) -> None:
    theirs, number = LinkState(), 1
    if receipted_before:
        theirs.receive(batch(1, bytes(100)), 0)
        theirs.handle_timeout(25 * MS)
        number = 2
    theirs.receive(batch(number, bytes(256 * 1024 - 1)), 7)
    assert theirs.next_timeout() == 25 * MS + 7
    theirs.receive(batch(number + 1, b"x"), 8)
    assert theirs.next_timeout() == 8


def test_bytes_that_were_read_elsewhere_are_copied() -> None:
    link = LinkState()
    came_in = bytearray(batch(1, bytes(100)))
    link.receive(memoryview(came_in)[:10], 0)
    link.receive(memoryview(came_in)[10:20], 0)
    came_in.clear()  # raises BufferError if the link kept a view of it


def test_a_large_batch_in_large_portions_is_whole() -> None:
    link = LinkState()
    payload = bytes(range(256)) * 200
    data, got = batch(1, payload), []
    for start in range(0, len(data), 20_000):
        got += link.receive(data[start : start + 20_000], 0).batches
    assert got == [payload]


def test_all_receipts_of_a_portion_are_reported() -> None:
    ours = LinkState()
    for token in (5, 6, 7):
        ours.send([b"a"], token)
    assert ours.receive(batch(0, received=1) + batch(0, received=2), 0).receipts == [5, 6]
    assert ours.receive(batch(0, received=3), 0).receipts == [7]


def test_every_batch_and_receipt_of_a_large_portion_is_found() -> None:
    ours = LinkState()
    for token in (5, 6, 7):
        ours.send([b"a"], token)
    large = [bytes([number]) * 100_000 for number in range(3)]
    found = ours.receive(b"".join(batch(number, body, received=number) for number, body in enumerate(large, 1)), 0)
    assert (found.batches, found.receipts) == (large, [5, 6, 7])


def test_a_batch_may_be_as_large_as_the_limit() -> None:
    assert [len(found) for found in LinkState(length_max=100).receive(batch(1, bytes(100)), 0).batches] == [100]


def test_a_damaged_header_is_named_as_the_cause() -> None:
    link = LinkState()
    link.receive(b"x" * LINK_HEADER_SIZE, 0)
    assert link.closed == "a header is damaged, or does not come from a tunnel link"


# --- messages of a websocket (8.5)


def test_8_5_a_message_is_one_batch_with_its_header() -> None:
    ours, theirs = LinkState(), LinkState()
    whole = joined(ours.send([b"ab", b"c"], 7))
    (got,) = theirs.message(whole, 0).batches
    assert isinstance(got, memoryview)
    assert (bytes(got), got.obj) == (b"abc", whole)
    assert ours.message(joined(theirs.handle_timeout(25 * MS)), 0).receipts == [7]
    assert theirs.message(batch(2), 0).batches == [b""]
    assert not theirs.closed


@pytest.mark.parametrize(
    ("message", "closed"),
    [
        (batch(1, b"abc")[:-1], "a message holds 26 bytes, but its header announces a batch of 3"),
        (batch(1, b"abc") + b"d", "a message holds 28 bytes"),
        (batch(1)[:-1], "a header is damaged"),
        (b"", "a header is damaged"),
        (batch(2, b"abc"), "batch 2 came, but the next one must be 1"),
        (batch(1, bytes(1001)), "above the limit of 1000"),
    ],
)
def test_8_5_a_wrong_message_closes_the_link(message: bytes, closed: str) -> None:
    link = LinkState(1000)
    found = link.message(message, 0)
    assert (found.batches, found.receipts) == ([], [])
    assert closed in link.closed
    assert link.message(batch(1, b"late"), 0).batches == []


# --- silence (8.4)


def test_8_4_a_half_sends_a_receipt_before_it_has_been_silent_for_20_s() -> None:
    link = LinkState()
    assert link.next_timeout() is None
    link.on_opened(5)
    first = 5 + 10_000 * MS
    assert link.next_timeout() == first
    assert link.handle_timeout(first - 1) == []
    assert joined(link.handle_timeout(first)) == batch(0)
    assert link.next_timeout() == 2 * 10_000 * MS + 5
    link.send([b"x"], 1)  # so at the next timeout it has not been silent
    assert link.handle_timeout(20_000 * MS + 5) == []
    assert joined(link.handle_timeout(30_000 * MS + 5)) == batch(0)


def test_8_4_a_receipt_that_is_due_anyway_breaks_the_silence() -> None:
    link = LinkState()
    link.on_opened(0)
    link.receive(batch(1, b"x"), 9_990 * MS)
    assert link.next_timeout() == 10_000 * MS
    assert joined(link.handle_timeout(10_000 * MS)) == batch(0, received=1)
    assert link.next_timeout() == 20_000 * MS
    link.receive(batch(2, b"x"), 10_001 * MS)
    assert link.next_timeout() == 10_026 * MS
    assert joined(link.handle_timeout(10_026 * MS)) == batch(0, received=2)
    assert link.handle_timeout(20_000 * MS) == []


def test_8_4_a_closed_link_sends_nothing() -> None:
    link = LinkState()
    link.on_opened(0)
    link.receive(bytes(LINK_HEADER_SIZE), 0)
    assert link.handle_timeout(10_000 * MS) == []


def test_every_header_says_that_this_half_leaves_the_link_once_it_does() -> None:
    near, far = LinkState(), LinkState()
    far.receive(joined(near.send([b"x"], 1)), 0)
    assert not far.is_peer_leaving
    far.receive(joined(near.leave()), 0)
    assert far.is_peer_leaving
    assert not near.is_peer_leaving
    header = decode_link_header(joined(near.send([b"y"], 2)))
    assert header is not None
    assert header.is_leaving


def test_a_closed_link_is_not_left() -> None:
    link = LinkState()
    link.receive(bytes(24), 0)
    assert link.leave() == []
