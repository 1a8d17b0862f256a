"""Compression of payloads: the codecs of the attributes byte, and decompression that bounds the size of its output."""

import enum
import importlib
import zlib
from typing import Any

from tunnel.messages.errors import DecompressError, UnknownCodecError
from tunnel.system.installing import install_command

__all__ = ["CODEC_MASK", "Codec", "compress", "decompress"]

CODEC_MASK = 0x03  # of the attributes; the other bits are reserved and must be 0

_GZIP_WBITS = 31  # selects a gzip header in zlib
_GZIP_LEVEL = 6  # zlib's own default
_ZSTD_LEVEL = 3  # zstd's own default
_ZSTD_WINDOW_MAX = 1 << 27  # the largest window that zstd itself decodes by default; it bounds the memory


class Codec(enum.IntEnum):
    """How a payload is compressed."""

    NONE = 0
    GZIP = 1
    ZSTD = 2


def compress(data: bytes, codec: Codec) -> bytes:
    """Compress data. UnknownCodecError if the library for the codec is missing."""
    match codec:
        case Codec.NONE:
            return data
        case Codec.GZIP:
            packer = zlib.compressobj(_GZIP_LEVEL, zlib.DEFLATED, _GZIP_WBITS)
            return packer.compress(data) + packer.flush()
        case Codec.ZSTD:
            return bytes(_zstandard().ZstdCompressor(level=_ZSTD_LEVEL).compress(data))


def decompress(data: bytes, codec: Codec, size_max: int, offset: int = 0) -> bytes:
    """Decompress data. DecompressError if it is damaged, or would decompress to more than `size_max` bytes.

    At most about `size_max` bytes are decompressed, whatever size the data claims. `offset` is for the error's text.
    """
    match codec:
        case Codec.NONE:
            unpacked = data
        case Codec.GZIP:
            unpacked = _gunzip(data, size_max, offset)
        case Codec.ZSTD:
            unpacked = _unzstd(data, size_max, offset)
    if len(unpacked) > size_max:
        raise DecompressError(f"decompresses to more than {size_max} bytes, the limit", offset)
    return unpacked


def _gunzip(data: bytes, size_max: int, offset: int) -> bytes:
    unpacker = zlib.decompressobj(_GZIP_WBITS)
    try:
        unpacked = unpacker.decompress(data, size_max + 1)
    except zlib.error as error:
        raise DecompressError(f"damaged gzip data: {error}", offset) from None
    if len(unpacked) <= size_max and (not unpacker.eof or unpacker.unused_data):
        raise DecompressError("damaged gzip data: it does not end where it should", offset)
    return unpacked


def _unzstd(data: bytes, size_max: int, offset: int) -> bytes:
    library = _zstandard(offset)
    unpacker = library.ZstdDecompressor(max_window_size=_ZSTD_WINDOW_MAX)
    try:
        if library.frame_content_size(data) > size_max:
            raise DecompressError(f"decompresses to more than {size_max} bytes, the limit", offset)
        # If the frame does not state its size, the library allocates at most `size_max` and raises if there is more.
        return bytes(unpacker.decompress(data, max_output_size=size_max, allow_extra_data=False))
    except library.ZstdError as error:
        raise DecompressError(f"damaged zstd data: {error}", offset) from None


def _zstandard(offset: int = 0) -> Any:
    try:
        return importlib.import_module("zstandard")
    except ModuleNotFoundError:
        missing = "this message needs zstd, and the package zstandard is not installed, although tunnel depends on it: "
        raise UnknownCodecError(missing + install_command("zstandard"), offset) from None
