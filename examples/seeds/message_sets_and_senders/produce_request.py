"""Section "Send and receive": the bytes of a produce request.

The document has two bytes of request key, then topic size and topic, partition, and the set with its size.

Prints:
    request key 0
    topic size 6, topic b'orders'
    partition -1
    set size 12, payloads [b'hi']
    all bytes read: True
"""

import struct

from tunnel.messages import ByteBufferMessageSet, ProduceRequest
from tunnel.messages.topics.requests import encode_produce


def main() -> None:
    data = b"".join(encode_produce(ProduceRequest("orders", -1, ByteBufferMessageSet.of([b"hi"]))))
    (key,) = struct.unpack_from(">H", data)
    print("request key", key)  # RequestKeys.PRODUCE
    (topic_size,) = struct.unpack_from(">H", data, 2)
    print(f"topic size {topic_size}, topic {data[4 : 4 + topic_size]!r}")
    partition, set_size = struct.unpack_from(">iI", data, 4 + topic_size)
    print("partition", partition)  # the broker chooses
    messages = data[12 + topic_size : 12 + topic_size + set_size]
    print(f"set size {set_size}, payloads {list(ByteBufferMessageSet(messages).payloads())}")
    print("all bytes read:", len(data) == 12 + topic_size + set_size)


if __name__ == "__main__":
    main()
