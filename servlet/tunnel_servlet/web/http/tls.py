"""The TLS contexts of the relay's listen addresses."""

import contextlib
import hashlib
import ssl
from pathlib import Path

from tunnel.system.private_files import require_ordinary, require_private, require_trusted
from tunnel_servlet.config import ConfigError, ListenAddress, RelayConfig, TlsFiles

__all__ = ["TlsReload", "contexts", "out_of_date", "public_contexts", "tls_context"]

_EXPIRED, _NOT_YET_VALID = 10, 9  # verification codes of OpenSSL: X509_V_ERR_CERT_HAS_EXPIRED, ..._NOT_YET_VALID
_FLIGHTS_MAX = 4  # of a handshake with TLS 1.2, which has more of them than TLS 1.3


def tls_context(files: TlsFiles) -> ssl.SSLContext:
    """Return a context for TLS 1.2 and later. Raise ConfigError if a file cannot be used.

    With `client_ca`, the context accepts only clients whose certificate that authority signed; with `client_optional`,
    also clients without a certificate.
    """
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        _require_trusted(files.certificate)
        _require_private_key(files.key)
        context.load_cert_chain(files.certificate, files.key, password=_no_password)
    except (OSError, ssl.SSLError, ConfigError) as error:
        raise ConfigError(
            f"tls: {files.certificate} and {files.key} are not a certificate and its key: {error}: name two PEM files "
            "that can be read and belong together"
        ) from None
    if files.client_ca:
        try:
            _require_trusted(files.client_ca)
            context.load_verify_locations(files.client_ca)
        except (OSError, ssl.SSLError, ConfigError) as error:
            raise ConfigError(
                f"tls: {files.client_ca} holds no certificates: {error}: name a PEM file with those of the authority"
            ) from None
        context.verify_mode = ssl.CERT_OPTIONAL if files.client_optional else ssl.CERT_REQUIRED
    return context


def out_of_date(files: TlsFiles) -> str:
    """Return in words that the certificate has expired, or is not valid yet; empty if neither is so.

    The relay can serve with it, and its clients refuse it. OpenSSL, which compares the times, gets the certificate in a
    handshake within this process, in which it is its own authority. Raise ConfigError as `tls_context` does.
    """
    client = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client.check_hostname = False
    client.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN  # also where another authority has signed it
    context = tls_context(TlsFiles(files.certificate, files.key))
    client.load_verify_locations(files.certificate)
    forth, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = client.wrap_bio(back, forth), context.wrap_bio(forth, back, server_side=True)
    try:
        for _ in range(_FLIGHTS_MAX):
            for end in ends:
                with contextlib.suppress(ssl.SSLWantReadError):
                    end.do_handshake()
    except ssl.SSLCertVerificationError as error:
        told = {_EXPIRED: "has expired", _NOT_YET_VALID: "is not valid yet"}.get(error.verify_code)
        return f"the certificate {files.certificate} {told}, so clients refuse it: renew it" if told else ""
    except ssl.SSLError:
        pass  # what is wrong is not the time
    return ""


def _require_trusted(file: str) -> None:
    """Raise ConfigError if every user can change the file, or if it cannot be read: OpenSSL names no file."""
    try:
        require_trusted(Path(file))
        with open(file, "rb"):
            pass
    except OSError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _require_private_key(file: str) -> None:
    try:
        require_private(Path(file), if_seen="use a new key and certificate if another user may have read this key")
    except FileNotFoundError as error:
        raise ConfigError(f"{file} cannot be read ({error.strerror})") from None
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _no_password() -> str:
    """Refuse an encrypted key: without this function, OpenSSL would ask for a password on the terminal."""
    raise ConfigError("the key is encrypted, and the relay cannot ask for its password")


def contexts(config: RelayConfig) -> list[tuple[ListenAddress, ssl.SSLContext | None]]:
    """Return each listen address with its TLS context, or None for plain HTTP.

    An address without a scheme uses TLS if the configuration has a [tls] table.
    """
    context = tls_context(config.tls) if config.tls is not None else None
    return [(address, context if address.tls is not False else None) for address in config.listen]


class TlsReload:
    """Makes new contexts when the files of TLS have changed. `files` are those in use."""

    def __init__(self, files: TlsFiles | None) -> None:
        self._files = files
        self._content = _content(files)

    def new_contexts(self, files: TlsFiles | None) -> tuple[ssl.SSLContext, ssl.SSLContext] | None:
        """Return contexts for clients and for people without the tunnel, or None if nothing has changed.

        Raise ConfigError if a file cannot be used; the files before then stay those in use.
        """
        if files is None or self._files is None:
            return None  # TLS is switched on and off at the next start
        content = _content(files)
        if content is not None and (files, content) == (self._files, self._content):
            return None
        found = tls_context(files), tls_context(TlsFiles(files.certificate, files.key))
        self._files, self._content = files, content
        return found


def _content(files: TlsFiles | None) -> list[bytes] | None:
    """Return the digests of the files, or None if one cannot be read."""
    if files is None:
        return None
    try:
        paths = [Path(name) for name in (files.certificate, files.key, files.client_ca) if name]
        for path in paths:
            require_ordinary(path)
        return [hashlib.sha256(path.read_bytes()).digest() for path in paths]
    except (OSError, ValueError):
        return None


def public_contexts(config: RelayConfig) -> list[tuple[ListenAddress, ssl.SSLContext | None]]:
    """Return the same for the addresses of public HTTP, where no client needs a certificate."""
    files = config.tls
    context = None if files is None else tls_context(TlsFiles(files.certificate, files.key))
    return [(address, context if address.tls is not False else None) for address in config.public_http]
