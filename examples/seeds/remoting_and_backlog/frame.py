"""Section "The protocol": <length> <header length> <header data> <body data>.

The length counts the other three parts. The header is JSON, the body is binary. A frame has at most 16,777,216 bytes.

Prints:
    length 38 = 4 + 22 + 12
    header {'code': 10, 'opaque': 7}
    body b'HELLO, WORLD'
    decoded from single bytes: 10 7 b'HELLO, WORLD'
    a larger frame: MalformedFrameError
"""

import json
import struct

from tunnel.messages import MalformedFrameError
from tunnel.messages.calls.frames import FRAME_BYTES_MAX, CallHeader, FrameDecoder, encode_frame


def main() -> None:
    data = b"".join(bytes(part) for part in encode_frame(CallHeader(code=10, opaque=7), b"HELLO, WORLD"))
    length, header_length = struct.unpack_from(">II", data)
    body = data[8 + header_length :]
    print(f"length {length} = 4 + {header_length} + {len(body)}")
    print("header", json.loads(data[8 : 8 + header_length]))
    print("body", body)
    decoder = FrameDecoder()
    for number in range(len(data)):  # a stream may cut a frame anywhere
        for header, found in decoder.feed(data[number : number + 1]):
            print("decoded from single bytes:", header.code, header.opaque, found)
    try:
        list(FrameDecoder().feed(struct.pack(">II", FRAME_BYTES_MAX + 1, 20)))
    except MalformedFrameError as error:
        print("a larger frame:", type(error).__name__)


if __name__ == "__main__":
    main()
