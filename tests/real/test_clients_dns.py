"""A DNS client, over UDP through the tunnel, on a name server that a user offers as a service of datagrams."""

import socket
import threading
from collections.abc import Iterator

import dns.message
import dns.query
import dns.rrset
import pytest

from tests.real.clients_rig import LOOPBACK, WAIT_S, Way

pytestmark = pytest.mark.real("nginx")

_TRIES = 20  # datagrams get lost on the bad path; a client of DNS then asks again


@pytest.fixture
def nameserver() -> Iterator[int]:
    """A name server that gives each name the address 192.0.2.1; yields its UDP port."""
    with socket.socket(type=socket.SOCK_DGRAM) as sock:
        sock.bind((LOOPBACK, 0))

        def serve() -> None:
            while True:
                data, where = sock.recvfrom(4096)
                if not data.strip(b"."):
                    return
                question = dns.message.from_wire(data)
                answer = dns.message.make_response(question)
                answer.answer.append(dns.rrset.from_text(question.question[0].name, 1, "IN", "A", "192.0.2.1"))
                sock.sendto(answer.to_wire(), where)

        thread = threading.Thread(target=serve)
        thread.start()
        port: int = sock.getsockname()[1]
        yield port
        sock.sendto(b".", (LOOPBACK, port))
        thread.join()


def ask(name: str, port: int) -> str:
    """Ask for the address of a name; return the first set of records in the answer, as text."""
    question = dns.message.make_query(name, "A")
    for _ in range(_TRIES):
        try:
            return dns.query.udp(question, LOOPBACK, timeout=WAIT_S / _TRIES, port=port).answer[0].to_text()
        except dns.exception.Timeout:
            continue
    raise AssertionError(f"no answer to {_TRIES} questions")


def test_questions_over_udp_to_a_service_are_answered(way: Way, nameserver: int) -> None:
    port = way.forward_datagrams(way.expose_datagrams("dns", nameserver))
    for name in ("one.example.", "two.example."):
        assert ask(name, port) == f"{name} 1 IN A 192.0.2.1"
    with way.trouble():
        assert ask("three.example.", port) == "three.example. 1 IN A 192.0.2.1"
