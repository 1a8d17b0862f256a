"""The connection in transcript.txt, replayed against a real relay: every byte of its answers must agree."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest

from tests.servlet.rig import Client, relay
from tests.support.loops import in_loop
from tunnel.wire import Answer, Attach, Attached, Exchange, PacketType, attachment_id, decode_envelope, parse_packets
from tunnel_servlet.web import host

TRANSCRIPT = Path(__file__).parent / "transcript.txt"
USERS = {"initiator": "ann", "acceptor": "bob"}
EPOCH = 0x0102030405060708
Step = tuple[str, str, str, bytes]  # direction (> or <), endpoint (initiator or acceptor), name of the body, body


class FixedRandom(Random):
    """Returns the epoch of the transcript."""

    def getrandbits(self, k: int, /) -> int:
        return EPOCH & ((1 << k) - 1)


def steps() -> list[Step]:
    """Return the bodies of the transcript, in order."""
    found: list[Step] = []
    for line in TRANSCRIPT.read_text(encoding="utf-8").splitlines():
        head = re.fullmatch(r"([<>]) (\w+): (.+)", line)
        if head is not None:
            found.append((head[1], head[2], head[3], b""))
        elif line.strip() and not line.startswith("#"):
            arrow, party, name, body = found.pop()
            found.append((arrow, party, name, body + bytes.fromhex(line.partition(";")[0])))
    return found


def test_requests_and_answers_alternate_and_have_the_names_of_their_contents() -> None:
    found = steps()
    assert [step[0] for step in found] == [">", "<"] * (len(found) // 2)
    kinds = set()
    for _, _, name, body in found:
        message = decode_envelope(body)
        assert name.split(" ")[0].rstrip(":").upper() == type(message).__name__.upper()
        if isinstance(message, Exchange | Answer):
            packets, discarded = parse_packets(message.data)
            assert discarded is None
            kinds |= {PacketType(packet.type).name for packet in packets}
            named = name.partition(": ")[2]
            said = ", ".join(PacketType(packet.type).name for packet in packets)
            assert named == (said or ("a pull" if isinstance(message, Exchange) else "no packets"))
    assert kinds == {"LISTEN_STATE", "CONNECT", "ACCEPTED", "DATA", "ACK", "FINISH", "CLOSE", "SHUTDOWN"}


@in_loop
async def test_a_real_relay_answers_as_the_transcript_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "SystemRandom", FixedRandom)
    found = steps()
    async with relay() as running:
        running.relay.host.switch._context._started_us = None  # ATTACHED says no age, which would differ each time
        clients = {party: Client(running, user) for party, user in USERS.items()}
        for request, response in zip(found[::2], found[1::2], strict=True):
            assert request[1] == response[1]
            reply = await clients[request[1]].post(request[3])
            assert reply.status == 200
            assert (response[2], reply.body.hex()) == (response[2], response[3].hex())
        assert running.relay.host.switch.stats().routes == 0  # both sides sent SHUTDOWN (9.5)
        for client in clients.values():
            await client.session.close()


def test_the_ids_of_the_transcript_follow_from_its_secrets() -> None:  # 6.1
    bodies = [decode_envelope(body) for _, _, name, body in steps() if name.startswith("ATTACH")]
    for attach, attached in zip(bodies[::2], bodies[1::2], strict=True):
        assert isinstance(attach, Attach)
        assert isinstance(attached, Attached)
        assert (attached.attachment_id, attached.epoch) == (attachment_id(attach.secret), EPOCH)
