"""Codecs: unpacked data equals the original, and never exceeds the limit."""

import gzip
import sys

import pytest
import zstandard

from tunnel.messages.codec import Codec, compress, decompress
from tunnel.messages.errors import DecompressError, UnknownCodecError

DATA = b"some text, some text, some text" * 100
CODECS = [Codec.GZIP, Codec.ZSTD]


@pytest.mark.parametrize("codec", Codec)
def test_data_unpacks_to_the_original(codec: Codec) -> None:
    packed = compress(DATA, codec)
    assert decompress(packed, codec, len(DATA)) == DATA
    assert (len(packed) < len(DATA)) == (codec is not Codec.NONE)


@pytest.mark.parametrize("codec", Codec)
def test_unpacking_more_than_allowed_is_refused(codec: Codec) -> None:
    with pytest.raises(DecompressError, match="more than 3099 bytes"):
        decompress(compress(DATA, codec), codec, len(DATA) - 1)


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("damage", ["cut", "longer", "flipped", "empty"])
def test_damage_is_noticed(codec: Codec, damage: str) -> None:
    packed = compress(DATA, codec)
    broken = {
        "cut": packed[:-3],
        "longer": packed + b"more",
        "flipped": bytes([packed[0] ^ 1]) + packed[1:],
        "empty": b"",
    }[damage]
    with pytest.raises(DecompressError) as caught:
        decompress(broken, codec, len(DATA), offset=7)
    assert caught.value.offset == 7


def test_a_zstd_frame_need_not_state_its_size() -> None:
    packed = zstandard.ZstdCompressor(write_content_size=False).compress(DATA)
    assert decompress(packed, Codec.ZSTD, len(DATA)) == DATA
    with pytest.raises(DecompressError):
        decompress(packed, Codec.ZSTD, len(DATA) - 1)


def test_a_compression_bomb_does_not_fill_memory() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    with pytest.raises(DecompressError, match="more than 1000 bytes"):
        decompress(bomb, Codec.GZIP, 1000)


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(DATA, Codec.ZSTD)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UnknownCodecError, match="pip install zstandard"):
        decompress(packed, Codec.ZSTD, len(DATA))
    with pytest.raises(UnknownCodecError):
        compress(DATA, Codec.ZSTD)
