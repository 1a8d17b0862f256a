"""Section 1, "Connection establishment" and "Sending packets": CONNECT, ACCEPTED, then data both ways.

The client chooses a connection id of its own, and sends it as source. The server answers with the id of its own end.

Prints:
    client -> server: CONNECT, source is the client's id, no destination id
    server -> client: ACCEPTED, with the ids of both ends
    the server read b'a message for the broker'
    the client read b'a message from the broker'
    the data was acknowledged: True
"""

from two_endpoints import CLIENT, SERVER, Two

from tunnel.wire import PacketType


def main() -> None:
    two = Two()
    client, server = two.open()
    for sender, kind, source, destination, _ in two.packets:
        if kind is PacketType.CONNECT:
            assert (source, destination) == (client.id, 0)
            print(f"{sender} -> server: CONNECT, source is the client's id, no destination id")
        if kind is PacketType.ACCEPTED:
            assert {source, destination} == {client.id, server.id}
            print(f"{sender} -> client: ACCEPTED, with the ids of both ends")
    client.write(b"a message for the broker", two.now)
    server.write(b"a message from the broker", two.now)
    two.exchange()
    print("the server read", bytes(server.read(100, two.now)))
    print("the client read", bytes(client.read(100, two.now)))
    two.wait(1)
    acknowledged = {name for name, kind, *_ in two.packets if kind is PacketType.ACK}
    print("the data was acknowledged:", acknowledged == {CLIENT, SERVER} and not client.unacknowledged_bytes)


if __name__ == "__main__":
    main()
