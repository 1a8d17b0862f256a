"""Explains the failures of connections to a relay, for commands and doctor: what happened, and what to do about it.

Failures of TLS are divided into kinds that need different advice. All of them, except the kind `tls`, are final: a
repeat would end in the same way.
"""

import errno
import re
import ssl
from collections.abc import Iterator

import aiohttp
import msgspec
from aiohttp.http import HttpProcessingError
from yarl import URL

from tunnel.exchange import NEEDS_HTTPS

__all__ = ["TLS_CUT", "Failure", "describe_failure", "explain", "is_cut", "is_final", "is_refused"]

_NUMBERS = re.compile(r"\[Errno (\d+)\]")
_EXPIRED, _NOT_YET = 10, 9  # the numbers of OpenSSL's X509_V_ERR_...
_WRONG_NAMES = frozenset({62, 63, 64})
_UNKNOWN_ISSUERS = frozenset({2, 18, 19, 20, 21})
_NO_TLS = frozenset({"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG"})
_VERSIONS = frozenset({"UNSUPPORTED_PROTOCOL", "TLSV1_ALERT_PROTOCOL_VERSION", "NO_PROTOCOLS_AVAILABLE"})
_NO_CERTIFICATE = frozenset({"TLSV13_ALERT_CERTIFICATE_REQUIRED"})
_BAD_CERTIFICATE = frozenset(
    {"TLSV1_ALERT_UNKNOWN_CA", "SSLV3_ALERT_BAD_CERTIFICATE", "SSLV3_ALERT_CERTIFICATE_UNKNOWN"}
)
_CERTIFICATES = frozenset({"expired", "not-yet-valid", "wrong-name", "unknown-issuer", "certificate"})
TLS_CUT = "a firewall or proxy may refuse this host, or TLS to it: ask its operator to allow it, or check the port"
"""The advice for the kind `tls-cut`, which may pass by itself."""
_PAGE = (
    "it blocks the relay, or wants you to sign in: open the relay's URL in a browser that uses this proxy, or ask the "
    "proxy's operator to allow CONNECT to the relay's host"
)
_NO_HTTP = "Bad status line"  # aiohttp's text where the first line is not that of an answer
_MALFORMED = "a device on the way breaks answers: use an https:// URL, or ask who runs it"
_FINAL = _CERTIFICATES | {"plain-http", "tls-version", "no-own-certificate", "own-certificate", "url"}


class Failure(msgspec.Struct, frozen=True):
    """A failure: its kind, what happened, and what to do; `advice` is empty where it depends on the caller."""

    kind: str
    text: str
    advice: str = ""

    @property
    def is_about_certificate(self) -> bool:
        """Whether this side refused the certificate of the relay, or of the proxy."""
        return self.kind in _CERTIFICATES

    def __str__(self) -> str:
        return f"{self.text}: {self.advice}" if self.advice else self.text


def explain(error: BaseException, base: URL, *, is_first: bool = False) -> Failure:
    """Return the explanation of an error that a request to the relay at `base` raised.

    `is_first` means that nothing has ever answered there. Then the scheme of the URL may be wrong.
    """
    where = _place(base.host, base.port)
    if isinstance(error, aiohttp.ClientHttpProxyError):
        return _of_proxy(error)
    # Some of aiohttp's errors are SSL errors by their class, but without the attributes of those.
    tls = next(
        (one for one in _chain(error) if isinstance(one, ssl.SSLError) and not isinstance(one, aiohttp.ClientError)),
        None,
    )
    if tls is not None:
        where = _speaker(error, base)
        return _of_certificate(tls, where) if isinstance(tls, ssl.SSLCertVerificationError) else _of_tls(tls, where)
    text = " ".join(f"{type(error).__name__}: {error}".split())
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return Failure("certificate", f"the certificate of {where} is not accepted ({error.certificate_error})")
        case aiohttp.InvalidURL():
            return Failure("url", f"{error} is not a URL", "write https://HOST or http://HOST:PORT")
        case aiohttp.ClientProxyConnectionError():
            return Failure("proxy", f"the proxy cannot be reached ({_reason(error.os_error)})")
        case aiohttp.ClientConnectorDNSError():
            return Failure("name", f"the name {error.host} cannot be resolved ({_reason(error.os_error)})")
        case aiohttp.ClientConnectorError() if base.scheme == "https" and _is_reset(error.os_error):
            return Failure("tls-cut", f"the connection to {where} was cut during the TLS handshake")
        case aiohttp.ClientConnectorError():
            kind = "refused" if is_refused(error.os_error) else "other"
            return Failure(kind, _reason(error.os_error))
        case TimeoutError():
            return Failure("timeout", "no answer in time")
        case aiohttp.ServerDisconnectedError():
            hint = f" (if TLS is spoken there, {NEEDS_HTTPS})"
            said = "the connection was closed before an answer came"
            return Failure("cut", said + (hint if is_first and base.scheme == "http" else ""))
        case aiohttp.ClientResponseError(message=message) if _is_malformed(error):
            said = message.partition(":")[0]
            return Failure("bad-http", f"an answer of {where} is malformed ({said})", _MALFORMED)
        case aiohttp.ClientResponseError() if is_first and base.scheme == "http":
            return Failure("no-http", f"{where} does not answer in HTTP", "write https:// if TLS is spoken there")
        case aiohttp.ClientOSError():
            return Failure("cut", f"the connection was cut while a request was sent ({_reason(error)})")
        case aiohttp.ClientPayloadError() | ConnectionError():
            return Failure("cut", text)
    return Failure("other", text)


def describe_failure(error: BaseException, base: URL, *, is_first: bool = False) -> str:
    """Return the explanation on one line, for people."""
    return " ".join(str(explain(error, base, is_first=is_first)).split())


def _is_malformed(error: BaseException) -> bool:
    """Whether something answered in HTTP, but broke its rules after the first line: most often a device on the path."""
    if not isinstance(error, aiohttp.ClientResponseError) or not isinstance(error.__cause__, HttpProcessingError):
        return False
    return not error.message.startswith(_NO_HTTP)


def is_final(error: BaseException, base: URL) -> bool:
    """Whether trying again is of no use until the user changes something: a wrong certificate, URL or version."""
    return explain(error, base).kind in _FINAL


def is_refused(error: OSError) -> bool:
    """Whether the host refused the connection, at each of its addresses: of several, the text quotes the errors."""
    if isinstance(error, ConnectionRefusedError):
        return True
    numbers = _NUMBERS.findall(str(error))
    return bool(numbers) and set(numbers) == {str(errno.ECONNREFUSED)}


def _is_reset(error: OSError) -> bool:
    """Whether a connection died that had been open."""
    return isinstance(error, ConnectionResetError | ConnectionAbortedError | BrokenPipeError)


def is_cut(error: BaseException) -> bool:
    """Whether a connection that had been open died before an answer began."""
    if isinstance(error, aiohttp.ClientConnectorError):
        return False
    return isinstance(error, aiohttp.ServerDisconnectedError | aiohttp.ClientOSError | ConnectionError)


def _of_proxy(error: aiohttp.ClientHttpProxyError) -> Failure:
    if error.status == 407:
        return Failure("proxy-password", error.message)
    if error.status == 200:
        text = f"the proxy answers CONNECT with HTTP 200, and then sends {error.message} in place of a tunnel"
        return Failure("proxy-page", text, _PAGE)
    return Failure("proxy", f"the proxy answers HTTP {error.status} {error.message}")


def _of_certificate(error: ssl.SSLCertVerificationError, where: str) -> Failure:
    code = error.verify_code
    if code == _EXPIRED:
        text = f"the certificate of {where} has expired"
        return Failure(
            "expired", text, "check this machine's clock; if it is right, ask the relay's operator to renew it"
        )
    if code == _NOT_YET:
        text = f"the certificate of {where} is not valid yet"
        return Failure("not-yet-valid", text, "check this machine's clock; if it is right, ask the relay's operator")
    if code in _WRONG_NAMES:
        text = f"the certificate that {where} shows is for another name"
        return Failure(
            "wrong-name", text, "write in the URL the name that the certificate is for, or ask the relay's operator"
        )
    if code in _UNKNOWN_ISSUERS:
        return Failure(
            "unknown-issuer",
            f"this machine does not trust the issuer of the certificate of {where} ({error.verify_message})",
            "if your company, which inspects TLS, or the relay's operator issued it, name the issuer's certificate "
            "with --ca FILE; otherwise do not go on",
        )
    reason = error.verify_message or str(error)
    return Failure("certificate", f"the certificate of {where} is not accepted ({reason})", "ask the relay's operator")


def _speaker(error: BaseException, base: URL) -> str:
    """Return with whom TLS was spoken: if the relay is addressed by http://, that can only be the proxy."""
    if base.scheme == "http":
        return "the proxy"
    if isinstance(error, aiohttp.ClientConnectorError | aiohttp.ClientConnectorCertificateError):
        return _place(error.host, error.port)
    return _place(base.host, base.port)


def _place(host: str | None, port: int | None) -> str:
    return f"[{host}]:{port}" if host and ":" in host else f"{host}:{port}"


def _of_tls(error: ssl.SSLError, where: str) -> Failure:
    reason = error.reason or ""
    if reason in _NO_TLS:
        text = f"{where} answers, but not in TLS"
        return Failure("plain-http", text, "write http:// instead of https://, or the port on which it speaks TLS")
    if reason in _VERSIONS:
        text = f"{where} speaks no version of TLS that this machine accepts ({reason.lower().replace('_', ' ')})"
        return Failure("tls-version", text, "ask the relay's operator to allow TLS 1.2 or 1.3")
    if reason in _NO_CERTIFICATE:
        text = f"{where} asks for a certificate of yours"
        return Failure("no-own-certificate", text, "name the file with it and its key with --cert FILE")
    if reason in _BAD_CERTIFICATE:
        text = f"{where} does not accept the certificate that --cert names ({reason.lower().replace('_', ' ')})"
        return Failure("own-certificate", text, "ask the relay's operator for another one")
    text = f"the TLS handshake with {where} failed ({' '.join(str(error).split())})"
    return Failure("tls", text)


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error and its causes, the nearest first."""
    seen: set[int] = set()
    waiting: list[BaseException | None] = [error]
    while waiting:
        one = waiting.pop(0)
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        nested = (getattr(one, "certificate_error", None), getattr(one, "os_error", None), one.__cause__)
        waiting += [each for each in nested if isinstance(each, BaseException)]


def _reason(error: OSError) -> str:
    if is_refused(error):
        return "the connection was refused"
    return error.strerror or str(error) or type(error).__name__
