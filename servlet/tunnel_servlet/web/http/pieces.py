"""Input that may be costly to parse, in pieces."""

from collections.abc import Callable

from tunnel_servlet.access.connections import CountedConnection
from tunnel_servlet.web.http.head_deadline import HeadDeadline
from tunnel_servlet.web.http.heads import is_plain
from tunnel_servlet.web.http.input_turns import InputTurns
from tunnel_servlet.web.http.websocket_guard import FrameGuard

__all__ = ["InputPieces"]

# Heads (unless `is_plain`), chunked bodies and websocket frames are parsed in pieces of this size.
_PIECE_BYTES = 4 * 1024


class InputPieces:
    """Data that came and waits for the payer's turn. It is parsed piece by piece while it may be costly to parse.

    Such data is a head (no request is being handled), a chunked body, or websocket frames. `parse` parses a piece,
    `cut` ends the connection at once.
    """

    def __init__(
        self,
        counted: CountedConnection,
        turns: InputTurns,
        head: HeadDeadline,
        parse: Callable[[bytes], None],
        cut: Callable[[], None],
    ) -> None:
        self.rest = b""
        self.is_chunked = False  # the body that comes has no length
        self.guard: FrameGuard | None = None  # of the websocket that this connection has become
        self._counted = counted
        self._turns = turns
        self._head = head
        self._parse: Callable[[bytes], None] | None = parse
        self._cut: Callable[[], None] | None = cut
        self._rest_bytes = 0  # charged for `rest`

    @property
    def expects_costly(self) -> bool:
        """Whether the data that comes now may take long to parse for its size, so that it is parsed in pieces."""
        return self._head.is_idle or self.is_chunked or self.guard is not None

    def wants(self, data: bytes) -> bool:
        """Return whether this data, which has just come, must be parsed in pieces."""
        if len(data) <= _PIECE_BYTES or not self.expects_costly:
            return False
        return self.is_chunked or self.guard is not None or not is_plain(data, _PIECE_BYTES)

    def take(self) -> None:
        """Parse the data that waits until the payer must wait."""
        while self.rest and not self._turns.is_held and self._parse is not None:
            size = _PIECE_BYTES if self.expects_costly else len(self.rest)
            if self.guard is not None:
                size = max(size, self.guard.coming_bytes)
            piece, self.rest = self.rest[:size], self.rest[size:]
            self._parse(piece)
            if not self.is_chunked and self.guard is None and self.rest and self._parse is not None:
                rest, self.rest = self.rest, b""
                self._parse(rest)

    def charge(self) -> None:
        """Charge the payer for data that waits for a turn. End the connection if the payer has too much."""
        is_charged = self.guard is not None or self.is_chunked  # the whole message or body is charged elsewhere
        size = 0 if is_charged or len(self.rest) <= _PIECE_BYTES else len(self.rest)
        if size <= self._rest_bytes:
            self._counted.free(self._rest_bytes - size)
        elif not self._counted.hold(size - self._rest_bytes):
            if self._cut is not None:
                self._cut()
            return
        self._rest_bytes = size

    def end(self) -> None:
        """Let go of the connection, which is lost."""
        self._parse = self._cut = None
