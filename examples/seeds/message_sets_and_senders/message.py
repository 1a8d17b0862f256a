"""Section "Message": the bytes of one message.

The document's table has length, version, attribute, checksum and data. The length counts everything after its own four
bytes: 1 + 1 + 4 + 5 = 11 for a payload of five bytes.

Prints:
    length 11
    version 1
    attribute 0
    crc32 of the payload: True
    data b'hello'
    a flipped bit: ChecksumError
"""

import struct
import zlib

from tunnel.messages import ByteBufferMessageSet, ChecksumError


def main() -> None:
    data = ByteBufferMessageSet.of([b"hello"]).data
    length, version, attribute, crc = struct.unpack_from(">IBBI", data)
    print("length", length)
    print("version", version)
    print("attribute", attribute)
    print("crc32 of the payload:", crc == zlib.crc32(b"hello"))
    print("data", data[10:])
    damaged = data[:-1] + b"\x00"
    try:
        list(ByteBufferMessageSet(damaged))
    except ChecksumError as error:
        print("a flipped bit:", type(error).__name__)


if __name__ == "__main__":
    main()
