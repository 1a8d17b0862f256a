"""One half of a link (section 8); both sides are equal. Bytes in, batches and receipts out; no I/O.

`send` and `handle_timeout` return what to write; what comes is read to `space`, and found by `filled`. When `closed` is
set the link is over: close the connection, and give up what `unreceipted` names (8.3).
"""

from collections import deque

import msgspec

from tunnel.exchange.config import KIB, MIB, MILLISECOND_US
from tunnel.exchange.link_buffers import BufferPool, LinkReader
from tunnel.wire import LINK_HEADER_SIZE, Buffer, LinkHeader, decode_link_header, encode_link_header

__all__ = ["LinkInput", "LinkState"]

_RECEIPT_US = 25 * MILLISECOND_US  # 8.2
_RECEIPT_BYTES = 256 * KIB  # a receipt leaves earlier after so many: a fast link is not to wait for them
_NUMBER_MAX = 2**32 - 1  # 8.1


class LinkInput(msgspec.Struct):
    """What `receive` found: whole batches in order, and the tokens of our batches that are receipted."""

    batches: list[Buffer]
    receipts: list[int]


class LinkState:
    """`length_max`: of a batch that comes, in bytes of packets. `buffers`: shared with other links, or its own."""

    def __init__(self, length_max: int = 16 * MIB, buffers: BufferPool | None = None) -> None:
        self.closed = ""  # why; empty while the link is open
        self.unreceipted_bytes = 0  # sent, and not known to have arrived
        self._length_max = length_max
        self._sent = 0  # number of the newest batch sent
        self._received = 0  # and received whole
        self._waiting: deque[tuple[int, int]] = deque()  # token, bytes of what is not receipted
        self._receipt_at_us: int | None = None
        self._unreceipted_input_bytes = 0
        self._header: LinkHeader | None = None  # of the batch whose packets are coming
        self._intake = LinkReader(buffers or BufferPool())

    @property
    def unreceipted(self) -> list[int]:
        """The tokens of the batches that are not receipted, oldest first."""
        return [token for token, _ in self._waiting]

    # output

    def send(self, packets: list[Buffer], token: int) -> list[Buffer]:
        """What to write to send this batch; the receipt will name its token. Buffers are not copied."""
        if self.closed:
            raise ValueError(f"the link is closed: {self.closed}")
        length = sum(map(len, packets))
        self._sent += 1
        self._waiting.append((token, length))
        self.unreceipted_bytes += length
        if self._sent == _NUMBER_MAX:
            self.closed = "its numbers are used up"
        return [self._head(self._sent, length), *packets]

    def next_timeout(self) -> int | None:
        """When a lone receipt is due (8.2)."""
        return self._receipt_at_us

    def handle_timeout(self, now: int) -> list[Buffer]:
        """What to write: a lone receipt if it is due, else nothing. Call it after each `receive`, too."""
        if self._receipt_at_us is None or now < self._receipt_at_us or self.closed:
            return []
        return [self._head(0, 0)]

    def _head(self, number: int, length: int) -> bytes:
        """A header; each one carries the receipt."""
        self._receipt_at_us = None
        self._unreceipted_input_bytes = 0
        return encode_link_header(LinkHeader(number, self._received, length))

    # input

    def space(self) -> memoryview:
        """Where the next bytes are to be read to; then call `filled`."""
        wanted = self._header.length if self._header is not None else LINK_HEADER_SIZE
        return self._intake.space(wanted, LINK_HEADER_SIZE)

    def filled(self, size: int, now: int) -> LinkInput:
        """So many bytes were read to there. Once the link is closed nothing is found any more."""
        found = LinkInput([], [])
        intake = self._intake
        intake.filled(size)
        while not self.closed:
            header = self._header
            wanted = header.length if header is not None else LINK_HEADER_SIZE
            if intake.held_bytes < wanted:
                break
            if header is None:
                self._take_header(found, decode_link_header(intake.take(wanted)), now)
            else:
                self._header = None
                self._take_batch(found, intake.take(wanted), now)
        return found

    def receive(self, data: Buffer, now: int) -> LinkInput:
        """Bytes that were read elsewhere, in any portion; they are copied."""
        found = LinkInput([], [])
        view = memoryview(data)
        while len(view) and not self.closed:
            space = self.space()
            size = min(len(space), len(view))
            space[:size] = view[:size]
            view = view[size:]
            part = self.filled(size, now)
            found.batches += part.batches
            found.receipts += part.receipts
        return found

    def _take_header(self, found: LinkInput, header: LinkHeader | None, now: int) -> None:
        self.closed = self._objection(header)
        if header is None or self.closed:
            return
        if header.received > self._sent - len(self._waiting):
            found.receipts += self._take_receipts(header.received)
        if header.number and header.length:
            self._header = header
        elif header.number:
            self._take_batch(found, b"", now)

    def _objection(self, header: LinkHeader | None) -> str:
        """Why this header closes the link (8.3); empty: it does not."""
        if header is None:
            return "a header is not ours, or damaged"
        if header.length > self._length_max:
            return f"a batch of {header.length} bytes is above the limit of {self._length_max}"
        if header.number not in (0, self._received + 1) or (header.number == 0 and header.length):
            return f"batch {header.number} is not the next one, {self._received + 1}"
        if not self._sent - len(self._waiting) <= header.received <= self._sent:
            return f"a receipt for batch {header.received} of {self._sent}"
        return ""

    def _take_receipts(self, received: int) -> list[int]:
        tokens = []
        for _ in range(received - (self._sent - len(self._waiting))):
            token, size = self._waiting.popleft()
            self.unreceipted_bytes -= size
            tokens.append(token)
        return tokens

    def _take_batch(self, found: LinkInput, batch: Buffer, now: int) -> None:
        self._received += 1
        found.batches.append(batch)
        self._unreceipted_input_bytes += len(batch)
        if self._unreceipted_input_bytes >= _RECEIPT_BYTES:
            self._receipt_at_us = now
        elif self._receipt_at_us is None:
            self._receipt_at_us = now + _RECEIPT_US
