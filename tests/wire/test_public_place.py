"""The option with which a service asks the relay for a public place, where strangers reach it (2.11)."""

import pytest

from tunnel.wire import ListenState, ListenStatus, Options, PublicPlace, decode_listen_state, encode_listen_state
from tunnel.wire.public_place import decode_public_place, encode_public_place

GOOD = [
    (b"tcp 1", PublicPlace(1)),
    (b"tcp+proxy 65535", PublicPlace(65535, proxy_header=True)),
    (b"http 8080", PublicPlace(8080, http=True)),
    (b"http app.example", PublicPlace(host="app.example", http=True)),
    (b"http+proxy 1.example", PublicPlace(host="1.example", http=True, proxy_header=True)),
    (b"http x" + b"a" * 121, PublicPlace(host="x" + "a" * 121, http=True)),
]


@pytest.mark.parametrize(("raw", "place"), GOOD)
def test_places_have_one_form(raw: bytes, place: PublicPlace) -> None:
    assert encode_public_place(place) == raw
    assert decode_public_place(raw) == place


@pytest.mark.parametrize(
    "raw",
    [
        *(b"", b"tcp", b"tcp 0", b"tcp 01", b"tcp 65536", b"tcp x.example", b"http X.example", b"http .example"),
        *(b"http 1.2", b"http a b", b"tcp  1", b"udp 1", b"http \xc3\xa4", b"tcp 1\n", b"tcp\xb1 1"),
        b"http " + b"a" * 123,
    ],
)
def test_other_texts_are_malformed(raw: bytes) -> None:
    assert decode_public_place(raw) is None


@pytest.mark.parametrize(
    "place",
    [PublicPlace(), PublicPlace(0, "x.example"), PublicPlace(65536), PublicPlace(1, "x", True), PublicPlace(-1)],
)
def test_other_places_cannot_be_announced(place: PublicPlace) -> None:
    with pytest.raises(ValueError, match="is no public place: give a port from 1 to 65535, or the name of a host"):
        place.check()


@pytest.mark.parametrize(("raw", "place"), GOOD)
def test_a_relay_that_does_not_know_the_option_takes_it_for_a_text(raw: bytes, place: PublicPlace) -> None:
    """Such a relay requires UTF-8 in this field, and ignores it (2.8)."""
    state = ListenState(1, ListenStatus.UP, 3, "db", options=Options(public=place))
    payload = encode_listen_state(state)
    text = payload[7 + 3 :]
    assert int.from_bytes(text[:2], "big") == len(text) - 2
    assert text[2:].decode() == f"\t\0{chr(len(raw))}{raw.decode()}"
    assert decode_listen_state(payload) == state


def test_malformed_options_make_the_packet_malformed() -> None:
    payload = encode_listen_state(ListenState(1, ListenStatus.UP, 3, "db", options=Options(public=PublicPlace(1))))
    assert decode_listen_state(payload.replace(b"tcp", b"tcq")) is None
    assert decode_listen_state(payload[:-1]) is None
