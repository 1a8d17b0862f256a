"""The streams of one generation (7.20): the open ones, and ended ones until the relay has heard what came on them."""

from tunnel.exchange.lanes.incoming_stream import IncomingStream
from tunnel.exchange.lanes.lane import Lane
from tunnel.wire import Exchange

__all__ = ["StreamSet"]


class StreamSet:
    """The streams of one generation. It stays empty where no answer is streamed."""

    def __init__(self) -> None:
        self.open: dict[int, IncomingStream] = {}  # by request id, the newest at the end
        self.unheard: list[IncomingStream] = []  # open streams, and ended ones until the relay has heard what came

    @property
    def is_proven(self) -> bool:
        """Whether packets from the relay come on a stream."""
        return any(stream.is_proven for stream in self.open.values())

    def first_owed(self) -> IncomingStream | None:
        """Return the stream whose confirmation must leave first, or None if none is owed."""
        first: IncomingStream | None = None
        for stream in self.unheard:
            if stream.owed_us is not None and (first is None or stream.owed_us < (first.owed_us or 0)):
                first = stream
        return first

    def confirm(self, lane: Lane, exchange: Exchange) -> None:
        """Let an exchange that starts on this lane tell the relay what came."""
        for own in self.unheard:
            if own.lane is lane:
                own.take_confirmation()  # the field `serial_received` of this request is the confirmation
        stream = self.first_owed() or next((stream for stream in self.unheard if stream.unheard), None)
        if stream is not None and stream.lane is not lane:
            exchange.confirms = stream.lane.index, stream.take_confirmation()

    def end(self) -> list[int]:
        """End all streams with their generation. Return the ids of the requests whose answers are still open."""
        request_ids = list(self.open)
        for stream in self.open.values():
            stream.is_over = True
        self.open.clear()
        self.unheard.clear()
        return request_ids
