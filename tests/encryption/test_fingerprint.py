"""Fingerprints: the key of a certificate as OpenSSL reads it, and no other reading of the same bytes."""

import base64
import hashlib
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from hypothesis import given
from hypothesis import strategies as st

from tunnel.encryption.fingerprint import is_fingerprint, key_fingerprint

PEMS = sorted((Path(__file__).parents[1] / "support" / "tls").glob("*.pem"))


def certificate(path: Path = PEMS[0]) -> bytes:
    text = path.read_text()
    start = text.index("-----BEGIN CERTIFICATE-----")
    end = text.index("-----END CERTIFICATE-----") + len("-----END CERTIFICATE-----")
    return ssl.PEM_cert_to_DER_cert(text[start:end])


def reference(der: bytes) -> str:
    key = x509.load_der_x509_certificate(der).public_key()
    digest = hashlib.sha256(key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)).digest()
    return "SHA256:" + base64.b64encode(digest).decode().rstrip("=")


@pytest.mark.parametrize("path", PEMS, ids=lambda path: path.name)
def test_a_fingerprint_is_the_hash_of_the_public_key(path: Path) -> None:
    der = certificate(path)
    found = key_fingerprint(der)
    assert found == reference(der)
    assert is_fingerprint(found)


@pytest.mark.parametrize("text", ["", "SHA256:", "sha256:" + "A" * 43, "SHA256:" + "A" * 42, "SHA256:" + "A" * 44])
def test_other_texts_are_no_fingerprints(text: str) -> None:
    assert not is_fingerprint(text)


@given(st.binary(max_size=300))
def test_random_bytes_have_no_fingerprint_and_raise_nothing(data: bytes) -> None:
    assert key_fingerprint(data) is None


@given(place=st.integers(0, 1 << 16), value=st.integers(0, 255))
def test_a_changed_byte_never_shows_another_key_than_openssl_would_use(place: int, value: int) -> None:
    der = bytearray(certificate())
    der[place % len(der)] = value
    found = key_fingerprint(bytes(der))
    try:
        expected: str | None = reference(bytes(der))
    except Exception:  # the certificate, or its key, is malformed for OpenSSL
        return
    assert found in (None, expected)


def test_a_length_in_a_longer_form_than_needed_is_refused() -> None:
    der = certificate()
    assert der[:2] == b"\x30\x82"
    assert key_fingerprint(b"\x30\x83\x00" + der[2:]) is None
    assert key_fingerprint(b"\x30\x80" + der[4:] + b"\x00\x00") is None
    assert key_fingerprint(der + b"\x00") is None
    assert key_fingerprint(der[:-1]) is None
    assert key_fingerprint(b"\x30\x81\x05" + bytes(5)) is None
