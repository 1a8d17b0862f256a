"""The key file of an acceptor: one PEM file with a private key, and a self-signed certificate with its public key.

A file whose path is given is made if it is missing, which needs the extra `encryption` of the package. Its permissions
are checked whenever it is read. Without a path, commands use a file in the user's directory if it exists. They make
that file only when they are asked for a key: two exits of a relay that each made a key of their own would be two peers
with one name, and clients would refuse the second.
"""

import os
import re
import ssl
from datetime import UTC, datetime
from pathlib import Path

from tunnel.encryption.fingerprint import key_fingerprint
from tunnel.encryption.tls import accepting_context
from tunnel.system.installing import install_command
from tunnel.system.private_files import config_directory, make_private_directory, read_private, write_private

__all__ = ["KeyFile", "make_key_file", "own_key"]

_CERTIFICATE = re.compile(rb"-----BEGIN CERTIFICATE-----.+?-----END CERTIFICATE-----", re.DOTALL)
_IF_SEEN = "make another key if another user may have seen this one: remove the file and start again"
_FOREVER = datetime(9999, 12, 31, 23, 59, 59, tzinfo=UTC)  # no expiry (RFC 5280, 4.1.2.5): only the key matters
_LONG_AGO = datetime(2000, 1, 1, tzinfo=UTC)  # so that clocks do not matter


class KeyFile:
    """The key with which an endpoint accepts encrypted streams. A changed file takes effect for the next stream.

    The constructor raises ValueError, with advice, if the file cannot be used. With `make`, it makes a missing file.
    """

    def __init__(self, path: Path, *, make: bool = False) -> None:
        if make and not path.exists():
            make_key_file(path)
        self.path = path
        self.trouble = ""  # why the file, as it is now, cannot be used; the previous key stays in use
        self._state = self._look()
        self._context, self._fingerprint = _load(path)

    @property
    def fingerprint(self) -> str:
        """The fingerprint of the public key, for `known_peers` and `--peer-key`."""
        self._refresh()
        return self._fingerprint

    @property
    def context(self) -> ssl.SSLContext:
        """The context for new TLS sessions."""
        self._refresh()
        return self._context

    def _refresh(self) -> None:
        state = self._look()
        if state == self._state:
            return
        self._state = state
        try:
            self._context, self._fingerprint = _load(self.path)
            self.trouble = ""
        except ValueError as error:
            self.trouble = str(error)

    def _look(self) -> tuple[int, ...]:
        try:
            found = self.path.stat()
        except OSError:
            return ()
        return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)


def own_key(file: str, default: str, *, make: bool) -> KeyFile | None:
    """Return the key in `file`, which is made if it is missing. If `file` is "", return the user's default key.

    `default` is the name of the default file. If that file is missing, it is made with `make`; without `make`, the
    result is None.
    Raise ValueError, with advice, if the key cannot be used.
    """
    if file:
        return KeyFile(Path(file), make=True)
    try:
        path = config_directory() / default
    except ValueError:
        if make:
            raise
        return None
    return KeyFile(path, make=make) if make or os.path.lexists(path) else None


def make_key_file(path: Path) -> None:
    """Make a key (ECDSA, P-256) and its certificate in a new file, mode 0600. An existing file is left as it is.

    Raise ValueError, with advice, if the file cannot be written or the package `cryptography` is missing.
    """
    content = _new_key()
    try:
        make_private_directory(path.parent)
        write_private(path, content, replaces=False)
    except OSError as error:
        raise ValueError(
            f"the key file {path} cannot be made: {error.strerror}: name a file in a directory that you can write"
        ) from None


def _new_key() -> bytes:
    try:
        from cryptography import x509
        from cryptography.hazmat.primitives import hashes, serialization
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.x509.oid import NameOID
    except ImportError:
        raise ValueError(
            "a key for encryption cannot be made, because the package cryptography is missing: run "
            f"`{install_command('cryptography')}`, or name a key file that was made elsewhere"
        ) from None
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "tunnel")])
    certificate = (
        x509.CertificateBuilder(issuer_name=name, subject_name=name, public_key=key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(_LONG_AGO)
        .not_valid_after(_FOREVER)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    return private + certificate.public_bytes(serialization.Encoding.PEM)


def _load(path: Path) -> tuple[ssl.SSLContext, str]:
    try:
        content = read_private(path, if_seen=_IF_SEEN)
    except FileNotFoundError:
        raise ValueError(f"the key file {path} does not exist: check the path") from None
    found = _CERTIFICATE.search(content)
    try:
        context = accepting_context(path)
        fingerprint = key_fingerprint(ssl.PEM_cert_to_DER_cert(found.group().decode())) if found else None
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        raise ValueError(f"{_UNUSABLE.format(path)} ({error})") from None
    if fingerprint is None:
        raise ValueError(_UNUSABLE.format(path))
    return context, fingerprint


_UNUSABLE = (
    "the key file {} does not hold a private key and its certificate in PEM form: remove it, and another key is made "
    "at the next start"
)
