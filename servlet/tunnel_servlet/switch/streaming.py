"""The streamed answers of all attachments: which of them have something to send, and their timers (PROTOCOL 7.20)."""

from collections.abc import Callable
from functools import partial

from tunnel.exchange.served.served import Reply, ServedLane
from tunnel_servlet.switch.deadlines import Deadline, Deadlines
from tunnel_servlet.switch.model import Attention, ServedAttachment

__all__ = ["Streaming"]

_BLOCKED_US = 1_000_000  # after this time, look again at an envelope that was due, but that its connection did not take


class Streaming:
    """Knows the open streams by the handle of their HTTP exchange.

    The host asks `poll_ready` which streams have something to send, and `poll` for their next envelopes. `send` sends
    the rest: the end of a stream that a timer or a newer stream ends, and answers to held pulls.
    """

    def __init__(self, deadlines: Deadlines, attention: Attention, send: Callable[[Reply | None], bool]) -> None:
        self._deadlines = deadlines
        self._attention = attention
        self._send = send
        self._by_handle: dict[int, tuple[ServedAttachment, ServedLane]] = {}
        self.ready: dict[int, None] = {}  # handles of the streams that may have something to send
        self._taken_back_us = -1  # when a timer last took packets back

    def __len__(self) -> int:
        return len(self._by_handle)

    def attach(self, attachment: ServedAttachment) -> None:
        """Give a new attachment the timer of its streams."""
        attachment.streams.deadline = Deadline(partial(self._look, attachment))

    def detach(self, attachment: ServedAttachment) -> list[int]:
        """Forget the streams of an attachment that ends or starts again. Return the handles of those that are open."""
        handles = [handle for handle, (owner, _) in self._by_handle.items() if owner is attachment]
        for handle in handles:
            self.forget(handle)
        attachment.streams.lanes = []
        attachment.streams.refresh()
        self._deadlines.clear(attachment.streams.deadline)
        return handles

    # --- one stream

    def on_opened(self, handle: int, attachment: ServedAttachment, lane: ServedLane, now: int) -> None:
        """Note that the answer to this request is a stream."""
        self._by_handle[handle] = attachment, lane
        attachment.streams.on_opened(lane)
        self._arm(attachment, now)

    def forget(self, handle: int) -> None:
        """Forget a stream whose last envelope has left, or which ends without one. Has no effect on other requests."""
        self._by_handle.pop(handle, None)
        self.ready.pop(handle, None)

    def on_gone(self, handle: int) -> ServedAttachment | None:
        """End a stream whose HTTP connection was lost. Return its attachment, whose packets leave by another way now;
        None if there is no such stream."""
        found = self._by_handle.get(handle)
        if found is None:
            return None
        attachment, lane = found
        self.forget(handle)
        lane.on_gone(handle)
        attachment.streams.refresh()
        return attachment

    def handle_confirmation(self, attachment: ServedAttachment, lane: ServedLane, serial: int, now: int) -> None:
        """Handle a confirmation that came in a request of any lane. A stream that it proves takes over: older ones end,
        and held pulls are answered, since no packet will leave on them."""
        streams = attachment.streams
        before = streams.carrier
        lane.confirm(serial, now)
        streams.refresh()
        carrier = streams.carrier
        if carrier is None or carrier is before:
            return
        for older in [found for found in streams.lanes if found is not carrier and found.carries]:
            self._send(older.finish_stream(now))
        for held in list(attachment.held_lanes.values()):
            for reply in held.release():
                self._send(reply)
        streams.refresh()

    # --- what is to be sent

    def signal(self, attachment: ServedAttachment) -> bool:
        """Ask for the next envelope of the stream that carries the packets. Return False if there is no such stream."""
        carrier = attachment.streams.carrier
        if carrier is None or carrier.stream is None:
            return False
        self.ready[carrier.stream] = None
        return True

    def poll_ready(self) -> int | None:
        """Return the handle of a stream that may have something to send, or None."""
        if not self.ready:
            return None
        handle = next(iter(self.ready))
        del self.ready[handle]
        return handle

    def poll(self, handle: int, now: int) -> Reply | None:
        """Return the next envelope of a stream, or None if nothing is to be sent now."""
        found = self._by_handle.get(handle)
        if found is None:
            return None
        attachment, lane = found
        reply = lane.poll_stream(now)
        if reply is not None:
            attachment.streams.refresh()
            self._arm(attachment, now)
            if not reply.answer.goes_on:
                self._attention.wake(attachment)
        return reply

    # --- timers

    def _arm(self, attachment: ServedAttachment, now: int) -> None:
        """Let the timer fire by the time at which a stream must be looked at. It is never postponed: when it fires,
        `_look` checks what is due."""
        due_us, deadline = attachment.streams.due_us(), attachment.streams.deadline
        if due_us is None:
            return
        if due_us <= now:
            due_us = now + _BLOCKED_US
        if deadline.due_us is None or due_us < deadline.due_us:
            self._deadlines.set(deadline, due_us)

    def _look(self, attachment: ServedAttachment, now: int) -> None:
        """Look at the streams whose time has come. Only one stream of all attachments has its packets taken back at a
        time: they are up to 4,096, and other users wait meanwhile."""
        streams = attachment.streams
        for lane in list(streams.lanes):
            if self._taken_back_us == now:
                self._deadlines.set(streams.deadline, now + 1)
                break
            held_bytes = lane.held_bytes
            for reply in lane.check_stream(now):
                self._send(reply)
            if lane.held_bytes < held_bytes:
                self._taken_back_us = now
            due_us, handle = lane.stream_due_us, lane.stream
            if handle is not None and due_us is not None and due_us <= now:
                self.ready[handle] = None
        streams.refresh()
        self._attention.wake(attachment)
        self._arm(attachment, now)
