"""One half of a link (section 8). Both sides use the same code. It turns bytes into batches and receipts, without I/O.

`send` and `handle_timeout` return the buffers to write. The caller reads incoming bytes into `space` and passes their
number to `on_filled`, which returns batches and receipts. On a websocket it passes whole messages to `message`. When
`closed` is set, the caller must close the connection and give up the batches that `tokens_unreceipted` names (8.3).
"""

import msgspec

from tunnel.exchange.config import MIB, MILLISECOND_US
from tunnel.exchange.link.buffers import BufferPool, LinkReader
from tunnel.exchange.path.window import AT_ONCE_BYTES
from tunnel.wire import LINK_HEADER_SIZE, Buffer, LinkHeader, decode_link_header, encode_link_header

__all__ = ["LinkInput", "LinkState"]

_RECEIPT_US = 25 * MILLISECOND_US  # 8.2
_RECEIPT_BYTES = AT_ONCE_BYTES  # after this many bytes a receipt leaves at once: a fast link must not wait for it
_NUMBER_MAX = 2**32 - 1  # 8.1
_SILENCE_US = 10_000 * MILLISECOND_US  # half of the longest silence of an open link (8.4); also the interval of checks


class LinkInput(msgspec.Struct):
    """Whole batches that came, in order, the tokens of our own batches that are now receipted, and the time."""

    batches: list[Buffer]
    receipts: list[int]
    now: int


class LinkState:
    """One half of a link.

    `length_max` limits an incoming batch, in bytes of packets. `buffers` may be shared with other links. With
    `takes_empty`, an empty batch is a batch of no packets; without, it closes the link.
    """

    def __init__(
        self, length_max: int = 16 * MIB, buffers: BufferPool | None = None, *, takes_empty: bool = True
    ) -> None:
        self.closed = ""  # why the link is closed; empty while it is open
        self.unreceipted_bytes = 0  # bytes sent that have no receipt yet
        self.is_peer_leaving = False  # the peer will close the link soon: it is to get no further batches (8.7)
        self._length_max = length_max
        self._takes_empty = takes_empty
        self._sent = 0  # number of the newest batch sent
        self._received = 0  # number of the newest batch received completely
        self._waiting: list[tuple[int, int]] = []  # token and size of each unreceipted batch
        self.due_us: int | None = None  # when to call `handle_timeout`, for a receipt without a batch (8.2, 8.4)
        self._receipt_at_us: int | None = None
        self._silence_at_us: int | None = None  # when to check whether this half was silent; None before `on_opened`
        self._has_spoken = False  # this half has sent a header since the last check
        self._is_leaving = False
        self._unreceipted_input_bytes = 0
        self._header: LinkHeader | None = None  # of the batch whose packets are coming
        self._intake = LinkReader(buffers or BufferPool())

    @property
    def tokens_unreceipted(self) -> list[int]:
        """The tokens of the batches without a receipt, oldest first."""
        return [token for token, _ in self._waiting]

    @property
    def coming_bytes(self) -> int:
        """The length of the batch whose header has arrived and whose end has not; 0 if there is none."""
        return self._header.length if self._header is not None else 0

    # output

    def send(self, packets: list[Buffer], token: int) -> list[Buffer]:
        """Return the buffers to write to send this batch. Its receipt will name `token`. Buffers are not copied."""
        if self.closed:
            raise ValueError(f"the link is closed: {self.closed}")
        length = sum(map(len, packets))
        self._sent += 1
        self._waiting.append((token, length))
        self.unreceipted_bytes += length
        if self._sent == _NUMBER_MAX:
            self.closed = "the batch numbers of the link are used up: open another link"
        return [self._head(self._sent, length), *packets]

    def leave(self) -> list[Buffer]:
        """Return the buffers to write to tell the peer that this half will close the link soon (8.7). What is on its
        way still arrives, and gets receipts, until then."""
        self._is_leaving = True
        return [] if self.closed else [self._head(0, 0)]

    def on_opened(self, now: int) -> None:
        """From now on, send a receipt whenever this half has been silent for long (8.4)."""
        self._silence_at_us = now + _SILENCE_US
        self._plan()

    def next_timeout(self) -> int | None:
        """Return when to call `handle_timeout`: a receipt without a batch may be due then (8.2, 8.4). None: never."""
        return self.due_us

    def _plan(self) -> None:
        receipt_us, silence_us = self._receipt_at_us, self._silence_at_us
        if receipt_us is None or silence_us is None:
            self.due_us = silence_us if receipt_us is None else receipt_us
        else:
            self.due_us = min(receipt_us, silence_us)

    def handle_timeout(self, now: int) -> list[Buffer]:
        """Return the buffers to write: a receipt without a batch if one is due, else none.

        Call it also after each `on_filled`, `receive` or `message`.
        """
        if self.closed:
            return []
        is_due = self._receipt_at_us is not None and now >= self._receipt_at_us
        if self._silence_at_us is not None and now >= self._silence_at_us:
            is_due = is_due or not self._has_spoken
            self._has_spoken = False
            self._silence_at_us = now + _SILENCE_US
            self._plan()
        return [self._head(0, 0)] if is_due else []

    def _head(self, number: int, length: int) -> bytes:
        """Encode a header. Every header carries the receipt, so none is due afterwards."""
        self._has_spoken = True
        self._receipt_at_us = None
        self.due_us = self._silence_at_us
        self._unreceipted_input_bytes = 0
        return encode_link_header(LinkHeader(number, self._received, length, self._is_leaving))

    # input

    def space(self) -> memoryview:
        """Return the memory to read the next bytes into. Then call `on_filled`."""
        wanted = self._header.length if self._header is not None else LINK_HEADER_SIZE
        return self._intake.space(wanted, LINK_HEADER_SIZE)

    def on_filled(self, size: int, now: int) -> LinkInput:
        """Process `size` bytes that were read into `space`. On a closed link the result is empty."""
        found = LinkInput([], [], now)
        intake = self._intake
        intake.on_filled(size)
        while intake.end > intake.start and not self.closed:
            header, start = self._header, intake.start
            stop = start + (header.length if header is not None else LINK_HEADER_SIZE)
            if stop > intake.end:
                break
            intake.start, piece = stop, intake.view[start:stop]
            if header is None:
                self._take_header(found, decode_link_header(piece), now)
            else:
                self._header = None
                self._take_batch(found, piece, now)
        return found

    def receive(self, data: Buffer, now: int) -> LinkInput:
        """Process bytes that were read elsewhere, in portions of any size. They are copied."""
        found = LinkInput([], [], now)
        view = memoryview(data)
        while len(view) and not self.closed:
            space = self.space()
            size = min(len(space), len(view))
            space[:size] = view[:size]
            view = view[size:]
            part = self.on_filled(size, now)
            found.batches += part.batches
            found.receipts += part.receipts
        return found

    def message(self, data: Buffer, now: int) -> LinkInput:
        """Process a message of a websocket (8.5): one header with its whole batch. It is not copied."""
        found = LinkInput([], [], now)
        view = memoryview(data)
        header = decode_link_header(view)
        if self.closed:
            return found
        if header is not None and header.length != len(view) - LINK_HEADER_SIZE:
            self.closed = f"a message holds {len(view)} bytes, but its header announces a batch of {header.length}"
            return found
        self._take_header(found, header, now)
        if self._header is not None:
            self._header = None
            self._take_batch(found, view[LINK_HEADER_SIZE:], now)
        return found

    def connection_lost(self) -> None:
        """Forget the part of a batch that has come. Otherwise its memory would be kept until Python's collector finds
        the objects of this connection, which in an idle process may be never."""
        self._intake.release()

    def _take_header(self, found: LinkInput, header: LinkHeader | None, now: int) -> None:
        receipted = self._sent - len(self._waiting)
        is_usual = (
            header is not None
            and (header.number == self._received + 1 if header.length else header.number == 0)
            and header.length <= self._length_max
            and receipted <= header.received <= self._sent
        )
        if not is_usual:
            self.closed = self._objection(header)
        if header is None or self.closed:
            return
        if header.is_leaving:
            self.is_peer_leaving = True
        if header.received > receipted:
            found.receipts += self._take_receipts(header.received)
        if header.number and header.length:
            self._header = header
        elif header.number:
            self._take_batch(found, b"", now)

    def _objection(self, header: LinkHeader | None) -> str:
        """Return why this header closes the link (8.3); empty if it does not."""
        if header is None:
            return "a header is damaged, or does not come from a tunnel link"
        if header.length > self._length_max:
            return f"a batch of {header.length} bytes is above the limit of {self._length_max}"
        if header.number not in (0, self._received + 1) or (header.number == 0 and header.length):
            return f"batch {header.number} came, but the next one must be {self._received + 1}"
        if header.number and not header.length and not self._takes_empty:
            return "an empty batch"
        if not self._sent - len(self._waiting) <= header.received <= self._sent:
            return (
                f"a receipt for batch {header.received} came, "
                f"but only {self._sent - len(self._waiting)} to {self._sent} are possible"
            )
        return ""

    def _take_receipts(self, received: int) -> list[int]:
        tokens = []
        for _ in range(received - (self._sent - len(self._waiting))):
            token, size = self._waiting.pop(0)
            self.unreceipted_bytes -= size
            tokens.append(token)
        return tokens

    def _take_batch(self, found: LinkInput, batch: Buffer, now: int) -> None:
        self._received += 1
        found.batches.append(batch)
        self._unreceipted_input_bytes += len(batch)
        if self._unreceipted_input_bytes >= _RECEIPT_BYTES:
            self._receipt_at_us = now
            self._plan()
        elif self._receipt_at_us is None:
            self._receipt_at_us = due_us = now + _RECEIPT_US
            if self.due_us is None or due_us < self.due_us:
                self.due_us = due_us
