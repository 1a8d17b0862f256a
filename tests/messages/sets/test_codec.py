"""Codecs: unpacked data equals the original, and never exceeds the limit."""

import gzip
import sys
import tracemalloc

import pytest
import zstandard

from tunnel.messages.errors import DecompressError, UnknownCodecError
from tunnel.messages.sets.codec import Codec, compress, decompress

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


def test_a_compression_bomb_is_refused() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    with pytest.raises(DecompressError, match="more than 1000 bytes"):
        decompress(bomb, Codec.GZIP, 1000)


def test_a_compression_bomb_is_unpacked_no_further_than_its_limit() -> None:
    bomb = gzip.compress(bytes(10_000_000))
    tracemalloc.start()
    try:
        with pytest.raises(DecompressError):
            decompress(bomb, Codec.GZIP, 1000)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("codec", Codec)
def test_an_error_names_the_place_of_the_data(codec: Codec) -> None:
    packed = compress(DATA, codec)
    with pytest.raises(DecompressError) as caught:
        decompress(packed, codec, len(DATA) - 1)
    assert caught.value.offset == 0
    with pytest.raises(DecompressError) as caught:
        decompress(packed, codec, len(DATA) - 1, offset=7)
    assert caught.value.offset == 7


@pytest.mark.parametrize("codec", CODECS)
def test_an_error_names_the_codec_and_the_damage(codec: Codec) -> None:
    name = codec.name.lower()
    for broken in (b"x" * 30, compress(DATA, codec)[:-3]):
        with pytest.raises(DecompressError, match=f"^damaged {name} data: .* .*") as caught:
            decompress(broken, codec, len(DATA), offset=7)
        assert caught.value.offset == 7
    packed = compress(DATA, Codec.GZIP)
    for broken in (packed[:-3], packed + b"more"):
        with pytest.raises(DecompressError, match=r"^damaged gzip data: it does not end where it should"):
            decompress(broken, Codec.GZIP, len(DATA))


def test_a_missing_library_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    packed = compress(DATA, Codec.ZSTD)
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(UnknownCodecError, match="pip install zstandard") as caught:
        decompress(packed, Codec.ZSTD, len(DATA), offset=7)
    assert caught.value.offset == 7
    with pytest.raises(UnknownCodecError) as caught:
        compress(DATA, Codec.ZSTD)
    assert caught.value.offset == 0
