"""Section 2, "Connection close": close() sends what was written, then CLOSE; the other end reads up to CLOSE.

The end that closes discards data that arrives later. The other end may read everything that came before CLOSE. In the
document, an end stops acknowledging when it has closed, or has read up to CLOSE. Here it goes on until SHUTDOWN comes,
because the last acknowledgement may be lost; SHUTDOWN is repeated until it is answered. See docs/REFERENCES.md.

Prints:
    the client sent CONNECT, DATA, CLOSE, SHUTDOWN
    the server read b'the last words', then the end: True
    both ends are gone: True
"""

from two_endpoints import CLIENT, SERVER, Two


def main() -> None:
    two = Two()
    client, server = two.open()
    client.write(b"the last words", two.now)
    client.close(two.now)
    two.exchange()
    words = bytes(server.read(100, two.now))
    at_eof = server.at_eof
    server.close(two.now)
    two.wait(5)
    print("the client sent", ", ".join(dict.fromkeys(two.types(CLIENT))))
    print(f"the server read {words!r}, then the end:", at_eof)
    two.wait(600)
    print("both ends are gone:", not any(two.endpoints[name].connections for name in (CLIENT, SERVER)))


if __name__ == "__main__":
    main()
