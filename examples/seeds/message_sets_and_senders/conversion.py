"""Section "Classes around messages": ProducerData -> ProducerPoolData -> Message -> ByteBufferMessageSet -> request.

A client has values of its own type. An encoder turns each into the payload of a message, the messages become a set, and
the set a request. The iterator of a set yields each message with the offset where the next one begins.

Prints:
    offset 0, next offset 24, payload b'{"item":"tea"}'
    offset 24, next offset 48, payload b'{"item":"ink"}'
    a message that is too large: MessageTooLargeError
"""

from tunnel.messages import JsonEncoder, MessageTooLargeError, ProducerData, RequestMaker


def main() -> None:
    maker = RequestMaker(encoder=JsonEncoder(), message_bytes_max=20)
    data = ProducerData("orders", [{"item": "tea"}, {"item": "ink"}], partition=3)
    request = maker.request(data.topic, data.partition, [maker.encoder.encode(value) for value in data.values])
    for found in request.messages:
        print(f"offset {found.offset}, next offset {found.next_offset}, payload {found.message.payload!r}")
    try:
        maker.encode([ProducerData("orders", [{"item": "a whole library"}])])
    except MessageTooLargeError as error:  # sizes are checked for all messages before the first byte is written
        print("a message that is too large:", type(error).__name__)


if __name__ == "__main__":
    main()
