"""Fingerprints of public keys, which are how people compare them and how files name them.

A fingerprint is `SHA256:` and the hash of the DER of the key (SubjectPublicKeyInfo) in base64 without padding, the form
that SSH made familiar. It names the key and not the certificate, so that a certificate can be renewed.
"""

import base64
import hashlib
import re

__all__ = ["is_fingerprint", "key_fingerprint"]

_FINGERPRINT = re.compile(r"SHA256:[A-Za-z0-9+/]{43}")
_SEQUENCE = 0x30
_INTEGER = 0x02
_VERSION = 0xA0
_BEFORE_KEY = (_INTEGER, _SEQUENCE, _SEQUENCE, _SEQUENCE, _SEQUENCE)  # serial, algorithm, issuer, validity, subject


def is_fingerprint(text: str) -> bool:
    """Return whether the text has the form of a fingerprint."""
    return _FINGERPRINT.fullmatch(text) is not None


def key_fingerprint(certificate: bytes) -> str | None:
    """Return the fingerprint of the public key in a certificate (DER); None if it is malformed.

    Only strict DER is taken. A certificate that two parsers could read differently might show one key here, and
    another to the TLS library.
    """
    outer = _element(certificate, 0, _SEQUENCE)
    if outer is None or outer[1] != len(certificate):
        return None
    body = _element(certificate, outer[0], _SEQUENCE)
    if body is None:
        return None
    position, end = body
    version = _element(certificate, position, _VERSION)
    if version is not None:
        position = version[1]
    for tag in _BEFORE_KEY:
        found = _element(certificate, position, tag)
        if found is None:
            return None
        position = found[1]
    key = _element(certificate, position, _SEQUENCE)
    if key is None or key[1] > end:
        return None
    digest = hashlib.sha256(certificate[position : key[1]]).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


def _element(data: bytes, position: int, tag: int) -> tuple[int, int] | None:
    """Return where the content of an element begins and ends; None if it is cut, has another tag or is not DER."""
    if position + 2 > len(data) or data[position] != tag:
        return None
    size, start = data[position + 1], position + 2
    if size & 0x80:
        count = size & 0x7F
        raw = data[start : start + count]
        if not 1 <= count <= 4 or len(raw) < count or raw[0] == 0:
            return None
        size, start = int.from_bytes(raw, "big"), start + count
        if size < 0x80:
            return None
    return (start, start + size) if start + size <= len(data) else None
