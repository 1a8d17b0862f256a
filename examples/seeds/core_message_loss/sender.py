"""Section "Sender": a queue, a byte buffer of 64 KiB, a socket, two phases, and the counts of the statistics collector.

A message moves from the queue to the byte buffer (`incrementOutBytes`), and the buffer to the socket (`registerWrite`).
The fourth write fails. The five messages in the buffer are then lost with the connection: they were buffered and not
written. Messages that are still in the queue leave in phase 2. The whole experiment, with real sockets, with brokers
and with a tunnel that loses no message, is `python -m loadtests.experiments.message_loss`.

Prints:
    phase 1 ended by: status is not CONNECTED, disconnected, readClosed
    Before Disconnect...
      Buffered vs Socket Messages: 20 vs 15 ... 5
      Buffered vs Socket Bytes   : 246,660 vs 184,995 ... 61,665
    After Disconnect...
      Buffered vs Socket Messages: 11 vs 11 ... 0
      Buffered vs Socket Bytes   : 135,663 vs 135,663 ... 0
    the last message written: terminate
"""

from collections import deque
from dataclasses import dataclass, field

BUFFER_BYTES = 64 * 1024
MESSAGE_BYTES = 12_333  # on the wire, as in the document's sample
MESSAGES = 30


@dataclass
class Collector:
    """The statistics of one phase."""

    buffered: int = 0
    written: int = 0

    def increment_out_bytes(self) -> None:
        self.buffered += 1

    def register_write(self, messages: int) -> None:
        self.written += messages

    def show(self, title: str) -> None:
        left, right = self.buffered, self.written
        sizes = [count * MESSAGE_BYTES for count in (left, right, left - right)]
        print(title)
        print(f"  Buffered vs Socket Messages: {left} vs {right} ... {left - right}")
        print("  Buffered vs Socket Bytes   : {:,} vs {:,} ... {:,}".format(*sizes))


class Socket:
    """A connection that breaks after `writes_left` writes, or never if that is None."""

    def __init__(self, writes_left: int | None) -> None:
        self.status = "CONNECTED"
        self._left = writes_left

    def write(self, messages: list[str]) -> None:
        if self._left == 0:
            self.status = "DISCONNECTED"
            raise ConnectionResetError("the path died")
        if self._left is not None:
            self._left -= 1


@dataclass
class Client:
    """The sender's client library. `signs` has what it told its listeners."""

    socket: Socket
    pending: deque[str] = field(default_factory=deque)
    signs: list[str] = field(default_factory=list)
    last_written: str = ""

    def flush(self, collector: Collector) -> None:
        """Write everything that is pending, a buffer at a time, until the connection breaks."""
        while self.pending and not self.is_broken():
            buffer: list[str] = []
            while self.pending and (len(buffer) + 1) * MESSAGE_BYTES <= BUFFER_BYTES:
                buffer.append(self.pending.popleft())
                collector.increment_out_bytes()
            try:
                self.socket.write(buffer)
            except ConnectionResetError:
                self.signs += ["disconnected", "readClosed"]  # the connection listener, the error listener
                return
            collector.register_write(len(buffer))
            self.last_written = buffer[-1]

    def is_broken(self) -> bool:
        """Return whether any of the three signs says that the connection is broken."""
        return self.socket.status != "CONNECTED" or bool(self.signs)


def main() -> None:
    client = Client(Socket(writes_left=3))
    client.pending.extend(str(number) for number in range(1, MESSAGES + 1))  # the publish rate is left out
    before, after = Collector(), Collector()
    client.flush(before)
    signs = ["status is not CONNECTED"] * (client.socket.status != "CONNECTED") + client.signs
    print("phase 1 ended by:", ", ".join(signs))
    client.socket, client.signs = Socket(writes_left=None), []  # reconnected
    client.pending.append("terminate")  # after the other messages
    client.flush(after)
    before.show("Before Disconnect...")
    after.show("After Disconnect...")
    print("the last message written:", client.last_written)


if __name__ == "__main__":
    main()
