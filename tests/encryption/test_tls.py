"""TLS sessions: records cut anywhere, ends, and bytes that are not the peer's."""

import os
import ssl
from pathlib import Path
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.encryption.records import RecordMaker
from tests.encryption.rig import CONTEXT, another_key, key, sessions
from tunnel.encryption.tls import AHEAD_BYTES_MAX, FEED_BYTES_MAX, TlsFault, TlsSession, accepting_context


@given(sizes=st.lists(st.integers(0, 70_000), min_size=1, max_size=6), cuts=st.randoms(use_true_random=False))
def test_plaintext_survives_any_cut_of_the_records(sizes: list[int], cuts: Random) -> None:
    client, server = sessions()
    data = b"".join(Random(size).randbytes(size) for size in sizes)
    position = 0
    for size in sizes:
        client.write(data[position : position + size])
        position += size
    client.end()
    wire = client.take()
    got = bytearray()
    while wire:
        size = cuts.randint(1, FEED_BYTES_MAX)
        part = server.receive(wire[:size])
        wire = wire[size:]
        assert len(part) <= AHEAD_BYTES_MAX
        got += part
    assert got == data
    assert server.peer_ended
    assert server._without_data == 0


def test_no_whole_record_waits_inside_so_that_an_end_loses_nothing() -> None:
    client, server = sessions()
    client.write(b"x" * 60_000)
    wire = client.take()
    first = server.receive(wire[:FEED_BYTES_MAX])
    server.end()  # asyncio's TLS drops what it has not read when it ends
    assert first + server.receive(wire[FEED_BYTES_MAX:]) == b"x" * 60_000
    client.write(b"more")
    assert server.receive(client.take()) == b"more"
    assert client.receive(server.take()) == b""
    assert client.peer_ended


def test_both_sides_may_end_in_any_order() -> None:
    client, server = sessions()
    server.end()
    client.receive(server.take())
    client.write(b"still")
    client.end()
    assert server.receive(client.take()) == b"still"
    assert server.peer_ended
    assert client.peer_ended
    server.end()
    assert server.take() == b""


@given(place=st.integers(0, 10_000), flip=st.integers(1, 255))
def test_an_altered_byte_is_found(place: int, flip: int) -> None:
    client, server = sessions()
    client.write(b"account 100" * 20)
    wire = bytearray(client.take())
    wire[place % len(wire)] ^= flip
    wire += bytes(1 << 15)  # if the length was raised, the session waits for the rest
    with pytest.raises(TlsFault):
        server.receive(bytes(wire))


def test_repeated_and_reordered_records_are_found() -> None:
    client, server = sessions()
    client.write(b"one")
    first = client.take()
    client.write(b"two")
    second = client.take()
    with pytest.raises(TlsFault):
        server.receive(second + first)
    client, server = sessions()
    client.write(b"one")
    first = client.take()
    assert server.receive(first) == b"one"
    with pytest.raises(TlsFault, match="bad record mac"):
        server.receive(first)


def test_bytes_after_the_end_are_found() -> None:
    client, server = sessions()
    client.end()
    wire = client.take()
    with pytest.raises(TlsFault, match="follow the end"):
        server.receive(wire + b"\x17\x03\x03\x00\x20" + bytes(32))
    client, server = sessions()
    client.end()
    server.receive(client.take())
    with pytest.raises(TlsFault, match="follow the end"):
        server.receive(b"x")


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"SSH-2.0-x\r\n", bytes(100), b"\x16\x03\x01\x00\x05hello"]
)
def test_clear_bytes_are_no_handshake(data: bytes) -> None:
    client = TlsSession(CONTEXT, server_side=False)
    client.start()
    with pytest.raises(TlsFault):
        client.receive(data)
    with pytest.raises(TlsFault):
        TlsSession(key().context, server_side=True).receive(data)


def made_by_hand(directory: Path) -> tuple[RecordMaker, TlsSession]:
    """Return a client that makes its own records, and the server of its session."""
    maker, server = RecordMaker(directory), TlsSession(key().context, server_side=True)
    server.receive(maker.tls.start())
    maker.tls.receive(server.take())
    server.receive(maker.tls.take())
    maker.begin()
    return maker, server


def test_a_few_key_updates_are_answered(tmp_path: Path) -> None:
    """Other implementations may send them."""
    maker, server = made_by_hand(tmp_path)
    for number in range(8):
        wire = maker.key_update(wants_answer=bool(number % 2)) + maker.record(b"data", padding=number)
        assert server.receive(wire) == b"data"
    server.write(b"answer")
    assert maker.tls.receive(server.take()) == b"answer"


@pytest.mark.parametrize("kind", ["answered", "silent", "empty"])
def test_a_peer_cannot_keep_us_busy_with_records_without_data(kind: str, tmp_path: Path) -> None:
    """48 KiB of KeyUpdates would cost 0.3 s, and each asks for an answer that the peer need not read."""
    maker, server = made_by_hand(tmp_path)
    wire = b"".join(
        maker.record(b"", padding=10) if kind == "empty" else maker.key_update(wants_answer=kind == "answered")
        for _ in range(1000)
    )
    with pytest.raises(TlsFault, match="too many records without data"):
        server.receive(wire[:FEED_BYTES_MAX])
    assert len(server.take()) < 1000  # before the fault, at most two groups of 16 records were answered


@given(cuts=st.lists(st.integers(1, 40), min_size=1))
def test_records_without_data_are_counted_however_they_are_cut(cuts: list[int], tmp_path_factory: Any) -> None:
    maker, server = made_by_hand(tmp_path_factory.mktemp("secrets"))
    wire = b"".join(maker.key_update(wants_answer=False) + maker.record(b"x" * (size + 1)) for size in range(16))
    got, place = b"", 0
    for size in [*cuts, len(wire)]:
        got += server.receive(wire[place : place + size])
        place += size
    assert got == b"".join(b"x" * (size + 1) for size in range(16))
    with pytest.raises(TlsFault, match="too many records without data"):
        server.receive(maker.key_update(wants_answer=False))


def test_older_versions_and_tickets_are_not_used() -> None:
    old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
    old.maximum_version = ssl.TLSVersion.TLSv1_2
    hello = TlsSession(old, server_side=False).start()
    with pytest.raises(TlsFault, match="unsupported protocol"):
        TlsSession(key().context, server_side=True).receive(hello)
    _, server = sessions()
    assert server.take() == b""  # no tickets follow the handshake
    assert key().context.num_tickets == 0


def test_the_secrets_of_a_session_are_logged_nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setenv("SSLKEYLOGFILE", os.path.join(str(tmp_path), "secrets"))
    assert sessions() is not None
    assert CONTEXT.keylog_filename is None
    assert os.listdir(str(tmp_path)) == []


def test_the_client_hello_fits_its_option() -> None:
    assert 0 < len(TlsSession(CONTEXT, server_side=False).start()) <= 2048


def test_each_key_has_its_fingerprint() -> None:
    sessions(another_key().context)
    assert key().fingerprint != another_key().fingerprint


def test_a_context_needs_a_key(tmp_path: object) -> None:
    with pytest.raises(OSError, match="No such file"):
        accepting_context(tmp_path / "nothing")  # type: ignore[operator]
