"""The identity provider: reads its keys, within bounds, and checks the signatures of its tokens."""

import asyncio
import hashlib
import json
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import aiohttp
import structlog

from tunnel.ground.secure_urls import is_secure_url
from tunnel.sign_in.asking import bound_responses
from tunnel.system.installing import install_command
from tunnel_servlet.access.sso import Member, SsoError, SsoTerms, read_claims
from tunnel_servlet.config import ConfigError

__all__ = ["IdentityProvider", "ProviderError", "require_library"]

_ANSWER_S = 10.0  # for the whole of one answer
_ANSWER_BYTES_MAX = 256 << 10  # Google's keys take 2 KiB, Microsoft's 20 KiB
_KEYS_MAX = 64
_AGE_S = 3600.0  # after which the keys are read again, so that a key that the provider withdrew is forgotten
_PAUSE_S = 30.0  # between the beginnings of two attempts to read the keys
_IDLE_S = 7200.0  # after the last attempt: no token was shown, so the known keys may have been withdrawn long ago
_RSA_BITS = (2048, 4096)
_PART_LETTERS_MAX = 700  # of base64: n of the largest RSA key has 683, and a longer x or y takes up to 0.5 s to read
_URL_LETTERS_MAX = 2000  # of the URL of the keys, which refusals and the log repeat
_EXPONENT_LETTERS = 6  # of base64: 65537 has 4. The time of a check grows with the exponent, which the provider chooses
_TOKEN_BYTES_MAX = 8192
_SHOWN_MAX = 100  # letters of a name in a token that a refusal repeats
_KNOWN_MAX = 4096  # tokens whose signature has been checked
_PUBLIC_PARTS = ("kty", "n", "e", "crv", "x", "y")
_log = structlog.get_logger("sso")


class ProviderError(Exception):
    """The keys of the identity provider cannot be read, so no token can be checked now. The text says why."""


def require_library() -> None:
    """Raise ConfigError if the library that checks signatures is not installed."""
    try:
        import joserfc  # noqa: F401
    except ImportError:
        raise ConfigError(f"[sso] needs joserfc: run `{install_command('joserfc')}`") from None


class IdentityProvider:
    """The keys of one provider, and the tokens that were checked.

    Nothing that the provider answers, or does not answer, delays anything but the requests with tokens whose keys are
    not known, or have not been in use for hours.
    """

    def __init__(self, terms: SsoTerms, now_s: Callable[[], float], passed_s: Callable[[], float] = time.monotonic):
        require_library()
        self.terms = terms
        self._now_s = now_s
        self._passed_s = passed_s
        self._keys: dict[str, Any] = {}
        self._read_s: float | None = None  # when the keys were read
        self._tried_s: float | None = None  # when that was last attempted
        self._ended_s = 0.0  # when the last attempt ended
        self._why = "they have not been read yet"
        self._reading: asyncio.Task[None] | None = None
        self._checked: OrderedDict[bytes, tuple[str, dict[str, Any]]] = OrderedDict()  # by hash: key id, claims

    async def identify(self, token: str) -> Member:
        """Return the user of a token. Raise SsoError if it is refused, and ProviderError if it cannot be checked."""
        if len(token) > _TOKEN_BYTES_MAX:
            raise SsoError(f"the token is longer than {_TOKEN_BYTES_MAX} bytes")
        if self._read_s is None or self._passed_s() - self._read_s > _AGE_S:
            reading = self._start_reading()
            if reading is not None and (not self._keys or self._passed_s() - self._ended_s > _IDLE_S):
                await asyncio.shield(reading)
        digest = hashlib.sha256(token.encode(errors="surrogateescape")).digest()
        found = self._checked.get(digest)
        if found is None or found[0] not in self._keys:  # the provider may have withdrawn the key
            found = self._checked[digest] = await self._check(token)
            if len(self._checked) > _KNOWN_MAX:
                self._checked.popitem(last=False)
        return read_claims(found[1], self.terms, self._now_s())

    async def close(self) -> None:
        """Stop reading."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    # --- the signature

    async def _check(self, token: str) -> tuple[str, dict[str, Any]]:
        from joserfc import jws, jwt
        from joserfc.errors import JoseError

        try:
            header = jws.extract_compact(token.encode()).headers()
        except (JoseError, ValueError, TypeError, RecursionError):
            raise SsoError("the token is not a JWT that the relay can read") from None
        algorithm, key_id = str(header.get("alg", "")), str(header.get("kid", ""))
        if algorithm not in self.terms.algorithms:
            raise SsoError(f"the token is signed by {algorithm[:_SHOWN_MAX]!r}, and the relay takes {self._algorithms}")
        if key_id not in self._keys:
            reading = self._start_reading()
            if reading is not None:
                await asyncio.shield(reading)
        if key_id not in self._keys:
            if self._why:
                raise ProviderError(f"the keys of {self.terms.issuer} cannot be read: {self._why}")
            raise SsoError(
                f"the token is signed with the key {key_id[:_SHOWN_MAX]!r}, which {self.terms.issuer} does not have"
            )
        try:
            claims = jwt.decode(token, self._keys[key_id], algorithms=[algorithm]).claims
        except (JoseError, ValueError, TypeError, RecursionError):
            raise SsoError(
                f"the signature of the token is not of the key {key_id[:_SHOWN_MAX]!r} by {algorithm}"
            ) from None
        return key_id, claims

    @property
    def _algorithms(self) -> str:
        return ", ".join(self.terms.algorithms)

    # --- the keys

    def _start_reading(self) -> asyncio.Task[None] | None:
        """Read the keys, unless that was attempted a moment ago. All who need them wait for the same attempt."""
        if self._reading is None:
            if self._tried_s is not None and self._passed_s() - self._tried_s < _PAUSE_S:
                return None
            self._tried_s = self._passed_s()
            self._reading = asyncio.get_running_loop().create_task(self._read())
        return self._reading

    async def _read(self) -> None:
        try:
            self._keys = _usable(await self._fetch_keys())
            self._read_s = self._passed_s()
            self._why = ""
            _log.info("keys_read", issuer=self.terms.issuer, keys=sorted(self._keys))
        except (ProviderError, OSError, aiohttp.ClientError, TimeoutError, UnicodeError) as error:  # of a host's name
            self._why = (
                f"no whole answer came within {_ANSWER_S:g} s" if isinstance(error, TimeoutError) else str(error)
            )
            if self._keys:
                _log.warning("keys_not_read", issuer=self.terms.issuer, text=f"{self._why}: the known ones stay")
            else:
                _log.error("keys_not_read", issuer=self.terms.issuer, text=self._why)
        finally:
            self._ended_s = self._passed_s()
            self._reading = None

    async def _fetch_keys(self) -> Any:
        url = self.terms.keys
        if not url:
            place = f"{self.terms.issuer.rstrip('/')}/.well-known/openid-configuration"
            found = await _fetch(place)
            if not isinstance(found, dict) or found.get("issuer") != self.terms.issuer:
                raise ProviderError(f"{place} is not the configuration of the issuer {self.terms.issuer}")
            url = str(found.get("jwks_uri"))
            is_local = self.terms.issuer.startswith("http://")
            if len(url) > _URL_LETTERS_MAX or not is_secure_url(url) or (url.startswith("http://") and not is_local):
                raise ProviderError(f"{place} names no https:// URL of keys")
        return await _fetch(url)


async def _fetch(url: str) -> Any:
    """Return the JSON at this URL. Raise ProviderError if the answer is anything else, or too long."""
    timeout = aiohttp.ClientTimeout(total=_ANSWER_S)
    headers = {"Accept": "application/json", "Accept-Encoding": "identity"}
    connector = aiohttp.TCPConnector(limit=1)
    bound_responses(connector)
    async with (
        aiohttp.ClientSession(
            connector=connector, timeout=timeout, auto_decompress=False, max_line_size=8190
        ) as session,
        session.get(url, headers=headers, allow_redirects=False) as response,
    ):
        if response.status != 200:
            raise ProviderError(f"{url} answered {response.status}, and not 200")
        body = bytearray()
        async for piece in response.content.iter_any():
            body += piece
            if len(body) > _ANSWER_BYTES_MAX:
                raise ProviderError(f"the answer of {url} is longer than {_ANSWER_BYTES_MAX >> 10} KiB")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ProviderError(f"the answer of {url} is not JSON") from None


def _usable(found: Any) -> dict[str, Any]:
    """Return the keys that can check signatures, by their ids. Raise ProviderError if there is none, or too many."""
    from joserfc import jwk

    listed = found.get("keys") if isinstance(found, dict) else None
    if not isinstance(listed, list) or len(listed) > _KEYS_MAX:
        raise ProviderError(f"they are not a list of at most {_KEYS_MAX} keys")
    keys: dict[str, Any] = {}
    for one in listed:
        if not isinstance(one, dict) or one.get("use", "sig") != "sig" or not isinstance(one.get("kid"), str):
            continue
        kind, exponent, modulus = one.get("kty"), one.get("e"), one.get("n")
        if kind == "RSA":
            bits = len(modulus) * 6 if isinstance(modulus, str) else 0
            if not (isinstance(exponent, str) and len(exponent) <= _EXPONENT_LETTERS):
                continue
            if not _RSA_BITS[0] <= bits <= _RSA_BITS[1] + 16:  # base64 rounds up
                continue
        elif kind not in ("EC", "OKP"):
            continue  # a secret, for example, which signs as well as it checks
        parts = {name: one[name] for name in _PUBLIC_PARTS if name in one}
        if any(isinstance(part, str) and len(part) > _PART_LETTERS_MAX for part in parts.values()):
            continue
        try:
            keys[one["kid"]] = jwk.import_key(parts)
        except Exception:  # the libraries have many kinds of errors, for example for a curve that they lack
            continue
    if not keys:
        raise ProviderError("no key there can be used")
    return keys
