"""Authentication at a proxy: its challenges and our answers. Basic and Digest; NTLM and Negotiate need pyspnego.

No credentials are sent before the proxy has asked. Then we use the strongest scheme that both sides know.
"""

import base64
import hashlib
import re
import secrets
from collections.abc import Callable, Iterable
from typing import Protocol

import msgspec

from tunnel.system.installing import install_command

__all__ = ["Challenge", "Conversation", "Introduction", "parse_challenges"]

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
_QUOTED = r'"(?:[^"\\]|\\.)*"'
_REST = (
    rf"""(?:[^",]+|{_QUOTED})*"""  # up to the next comma that is in no quoted text, or up to a quote that stays open
)
_ITEM = re.compile(
    rf"""[\s,]*(?:
        (?P<name>{_TOKEN})\s*=\s*(?:(?P<quoted>{_QUOTED})|(?P<plain>[^\s",=][^\s",]*))
        | (?P<broken>{_TOKEN}=){_REST}
        | (?P<scheme>{_TOKEN})(?:\s+(?P<data>[A-Za-z0-9._~+/-]+=*)(?=\s*(?:,|$)))?
        | (?=[^\s,])(?:[^",]|{_QUOTED}){_REST}
    )""",
    re.VERBOSE,
)
# In our answer, a line break would begin another header field; a surrogate (a byte that is no UTF-8) cannot be encoded.
_UNPRINTABLE = re.compile(r"[\x00-\x08\x0a-\x1f\x7f-\x9f\ud800-\udfff]")
_SPOKEN = {"basic": "Basic", "digest": "Digest", "ntlm": "NTLM", "negotiate": "Negotiate"}
_MULTI_MESSAGE = ("negotiate", "ntlm")  # schemes of several messages, all on one connection
_HASHES: dict[str, Callable[[bytes], "hashlib._Hash"]] = {
    "sha-256": hashlib.sha256,
    "md5": lambda data: hashlib.md5(data, usedforsecurity=False),
}


class Challenge(msgspec.Struct, frozen=True):
    """A scheme that the proxy offers, with its parameters. `data`: the proxy's message in a conversation."""

    scheme: str  # in lower case
    parameters: dict[str, str] = {}
    data: str = ""


class Conversation(Protocol):
    """The client's side of NTLM or Negotiate on one connection."""

    def step(self, in_token: bytes | None = None) -> bytes | None:
        """Return our next message, given the proxy's latest."""


def parse_challenges(values: Iterable[str]) -> list[Challenge]:
    """Return the challenges in Proxy-Authenticate headers.

    Ignore an invalid part up to the next comma. If it is not a parameter, it may be the beginning of a challenge, so
    ignore the parameters that follow it, too. Also ignore everything after a quote that stays open: it is quoted text.
    """
    found: list[Challenge] = []
    parameters: dict[str, str] = {}  # of the challenge that is read now
    for raw in values:
        value = _UNPRINTABLE.sub("?", raw)
        at = 0
        while match := _ITEM.match(value, at):
            at = match.end()
            if match["scheme"]:
                found.append(Challenge(match["scheme"].lower(), {}, match["data"] or ""))
                parameters = found[-1].parameters
            elif match["name"]:
                quoted = match["quoted"]
                text = match["plain"] if quoted is None else re.sub(r"\\(.)", r"\1", quoted[1:-1])
                parameters[match["name"].lower()] = text
            elif not match["broken"]:
                parameters = {}
    return found


class Introduction:
    """User and password for one proxy, and the scheme in use. All connections share it. The password is not logged.

    Once the proxy has refused them, they are not sent again: many proxies lock an account after a few wrong passwords.
    A new password comes with a new Introduction. If the proxy accepted them before, a refusal may be a passing fault:
    then the callers decide how often they ask again.
    """

    def __init__(self, proxy: str, host: str, user: str = "", password: str = "", *, can_talk: bool = False) -> None:
        """`can_talk`: whether several messages on one connection are possible, as with CONNECT."""
        self.user = user
        self.refusal = ""  # advice for people, once the proxy has refused user and password
        self._was_accepted = False
        self._proxy = proxy
        self._host = host
        self._password = password
        self._can_talk = can_talk
        self._chosen: Challenge | None = None
        self._count = 0  # number of answers to the nonce of the chosen challenge

    def header(self, method: str, uri: str) -> str | None:
        """Return the value of Proxy-Authorization; None before the first challenge, after a refusal, or if a
        conversation is needed."""
        if self.refusal:
            return None
        match self._chosen:
            case Challenge(scheme="basic"):
                return "Basic " + base64.b64encode(f"{self.user}:{self._password}".encode()).decode("ascii")
            case Challenge(scheme="digest", parameters=parameters):
                self._count += 1
                return self._digest(parameters, method, uri)
        return None

    def conversation(self) -> tuple[str, Conversation] | None:
        """Return the scheme's name and our side of a new conversation; None if the chosen scheme needs none, or after a
        refusal."""
        if self.refusal or self._chosen is None or self._chosen.scheme not in _MULTI_MESSAGE:
            return None
        import spnego  # from the extra proxy-auth

        scheme = self._chosen.scheme
        return _SPOKEN[scheme], spnego.client(
            self.user or None, self._password or None, hostname=self._host, service="HTTP", protocol=scheme
        )

    def on_passed(self, sent: str | None) -> None:
        """Record that the proxy let a request with the header `sent` pass."""
        self._was_accepted |= sent is not None

    def on_challenged(self, challenges: list[Challenge], sent: str | None) -> bool:
        """Choose a scheme after the proxy answered 407 to the header `sent`.

        Return False if none is left to try now, and set `refusal` if that is because of user and password.
        """
        if self.refusal:
            return False
        scheme = (sent or "").partition(" ")[0].lower()
        if not challenges:
            challenges = [Challenge("basic")]  # the proxy must name a scheme, but did not: most such proxies mean Basic
        if scheme:
            offers = [offer for offer in challenges if offer.scheme == scheme == "digest"]
            if not any(offer.parameters.get("stale", "").lower() == "true" for offer in offers):
                if self._was_accepted:
                    self._choose(challenges)  # the next request answers this challenge: perhaps of another proxy
                elif self.user:  # without a user, we sent a ticket of the operating system: later it can have another
                    self.refusal = self.advice(challenges)
                return False
        return self._choose(challenges)

    def _choose(self, challenges: list[Challenge]) -> bool:
        """Choose the strongest scheme that we can answer. Return whether there is one."""
        best = next((offer for offer in sorted(challenges, key=_strength) if self._can_answer(offer)), None)
        if best is None:
            return False
        if self._chosen is None or self._chosen.parameters != best.parameters or self._chosen.scheme != best.scheme:
            self._chosen, self._count = best, 0
        return True

    def advice(self, challenges: list[Challenge]) -> str:
        """Return advice for people after a 407 that could not be answered: what the proxy asks for, and what to do."""
        names = ", ".join(dict.fromkeys(_SPOKEN.get(offer.scheme, offer.scheme) for offer in challenges))
        realm = next((offer.parameters["realm"] for offer in challenges if offer.parameters.get("realm")), "")
        asks = f"{self._proxy} asks for {names or 'credentials, but does not name a scheme'}"
        asks += f" ({realm})" if realm else ""
        schemes = {offer.scheme for offer in challenges}
        usable = schemes & set(_SPOKEN)
        if challenges and not usable:
            return f"{asks}, which tunnel does not support: ask the proxy's operator for Basic or Digest"
        if usable <= set(_MULTI_MESSAGE) and challenges:
            if not self._can_talk:
                return f"{asks}, which works only with a relay at https://: use such a URL"
            if not _knows_spnego():
                return f"{asks}, which needs the package pyspnego: install it with {install_command('pyspnego')}"
        if not self.user:
            return f"{asks}: write http://USER:PASSWORD@HOST:PORT into a file of mode 0600, and give --proxy @FILE"
        return f"{asks}, but did not accept user {self.user}: check user and password (special characters as %XX)"

    def _can_answer(self, offer: Challenge) -> bool:
        if offer.scheme in _MULTI_MESSAGE:
            # Without a user, Negotiate may use a ticket of the operating system.
            return self._can_talk and bool(self.user or offer.scheme == "negotiate") and _knows_spnego()
        if not self.user:
            return False
        if offer.scheme == "digest":
            name, _ = _algorithm(offer.parameters)
            return name in _HASHES and bool(offer.parameters.get("nonce")) and _qop(offer.parameters) is not None
        return offer.scheme == "basic"

    def _digest(self, asked: dict[str, str], method: str, uri: str) -> str:
        """Return a Digest answer by RFC 7616, 3.4; without qop, by RFC 2069."""
        name, per_session = _algorithm(asked)
        realm, nonce, qop = asked.get("realm", ""), asked["nonce"], _qop(asked)

        def digest(*parts: str) -> str:
            return _HASHES[name](":".join(parts).encode()).hexdigest()

        count, own = f"{self._count:08x}", secrets.token_hex(16)
        secret = digest(self.user, realm, self._password)
        if per_session:
            secret = digest(secret, nonce, own)
        action = digest(method, uri)
        response = digest(secret, nonce, count, own, qop, action) if qop else digest(secret, nonce, action)
        fields = {"username": self.user, "realm": realm, "nonce": nonce, "uri": uri, "response": response}
        if "opaque" in asked:
            fields["opaque"] = asked["opaque"]
        text = ", ".join(f'{key}="{_escaped(value)}"' for key, value in fields.items())
        if "algorithm" in asked:
            text += f", algorithm={asked['algorithm']}"
        if qop or per_session:
            text += f', cnonce="{own}"'
        return f"Digest {text}, qop={qop}, nc={count}" if qop else f"Digest {text}"


def _strength(offer: Challenge) -> tuple[int, int]:
    order = ("negotiate", "ntlm", "digest", "basic")
    hashes = list(_HASHES)
    name, _ = _algorithm(offer.parameters)
    return (
        order.index(offer.scheme) if offer.scheme in order else len(order),
        hashes.index(name) if name in hashes else len(hashes),
    )


def _algorithm(asked: dict[str, str]) -> tuple[str, bool]:
    name = asked.get("algorithm", "MD5").lower()
    return name.removesuffix("-sess"), name.endswith("-sess")


def _qop(asked: dict[str, str]) -> str | None:
    """Return the qop to use: empty if the proxy offers none, None if we support none of those that it offers."""
    offered = asked.get("qop", "")
    if not offered:
        return ""
    return "auth" if "auth" in [part.strip().lower() for part in offered.split(",")] else None


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _knows_spnego() -> bool:
    try:
        import spnego  # noqa: F401
    except ImportError:
        return False
    return True
