"""Section "MessageSet": messages one after another, in memory for producer and consumer, in a file for the broker.

Both kinds of set have the document's `writeTo(channel, offset, maxSize)`. A file set goes to a socket by `sendfile`, so
that its bytes never enter this program. In the document, the maximum size of a file set ignores the offset, so that
`writeTo` would read beyond the set; here it does not.

Prints:
    33 bytes in the buffer set: 3 messages of 11 bytes
    the file set has the same: True
    written from offset 11 on, with a bound of 100: 22 bytes
    received: [b'2', b'3']
"""

import socket
import tempfile
from pathlib import Path

from tunnel.messages import ByteBufferMessageSet, FileMessageSet

HEADER_BYTES = 10


def main() -> None:
    buffered = ByteBufferMessageSet.of([b"1", b"2", b"3"])
    print(f"{buffered.size_bytes} bytes in the buffer set: 3 messages of {HEADER_BYTES + 1} bytes")
    with (
        tempfile.TemporaryDirectory() as directory,
        FileMessageSet.open(Path(directory) / "messages", writable=True) as file_set,
    ):
        file_set.append(buffered)
        print("the file set has the same:", list(file_set.payloads()) == list(buffered.payloads()))
        near, far = socket.socketpair()
        with near, far:
            written = file_set.write_to(near, 11, 100)
            print(f"written from offset 11 on, with a bound of 100: {written} bytes")
            received = ByteBufferMessageSet(far.recv(1000))
            print("received:", list(received.payloads()))


if __name__ == "__main__":
    main()
