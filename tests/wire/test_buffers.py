"""Codecs take every kind of Buffer."""

import typing

import pytest

from tunnel.wire import (
    Ack,
    Buffer,
    Edge,
    End,
    LinkHeader,
    Option,
    Options,
    Packet,
    Status,
    decode_ack,
    decode_edge,
    decode_end,
    decode_envelope,
    decode_link_header,
    decode_option,
    decode_options,
    encode_ack,
    encode_edge,
    encode_end,
    encode_envelope,
    encode_link_header,
    encode_option,
    encode_options,
    encode_packet,
    parse_packets,
)

KINDS = typing.get_args(Buffer)


def test_the_kinds_of_buffer_are_known() -> None:
    assert (bytes, bytearray, memoryview) == KINDS


@pytest.mark.parametrize("kind", KINDS)
def test_codecs_take_every_kind_of_buffer(kind: type[bytes]) -> None:
    ack, end, edge, header = Ack(1, 2, 3, 4, 5, [(6, 7)]), End(1, bytes(16)), Edge(1, 2), LinkHeader(1, 2, 3)
    option, packet, status = Option(1, Options(user="u", endpoint_id=bytes(16))), Packet(4, 1, 2, 3, b"d"), Status(1)
    assert decode_ack(kind(encode_ack(ack))) == ack
    assert decode_end(kind(encode_end(end))) == end
    assert decode_edge(kind(encode_edge(edge))) == edge
    assert decode_option(kind(encode_option(option))) == option
    assert decode_options(kind(encode_options(option.options))) == option.options
    assert decode_link_header(kind(encode_link_header(header))) == header
    assert parse_packets(kind(b"".join(encode_packet(packet)))) == ([packet], None)
    assert decode_envelope(kind(b"".join(encode_envelope(status)))) == status
