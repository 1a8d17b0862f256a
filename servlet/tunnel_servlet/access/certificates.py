"""Names in the certificates of clients, and the users whose they are.

A name is a kind and a value, such as `DNS:ann.clients.example`. The authority has vouched for each name in a
certificate that it signed; a fingerprint names one certificate alone.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

__all__ = ["FINGERPRINT", "CertificateTable", "names_in", "parse_certificate_name"]

FINGERPRINT = "SHA256"  # of the whole certificate (DER), in hex
_KINDS = {kind.lower(): kind for kind in ("CN", "DNS", "URI", "email", FINGERPRINT)}
_DIGEST = re.compile(r"[0-9a-f]{64}")
_COMMON_NAME = "commonName"


def parse_certificate_name(text: str) -> str:
    """Return a name as `names_in` gives it. Raise ValueError if the text is not a name."""
    kind, colon, value = text.partition(":")
    known = _KINDS.get(kind.lower())
    if not known or not colon or not value or value != value.strip() or not value.isprintable():
        raise ValueError(
            f"{text!r} is not a name in a certificate: write it as in DNS:ann.example, URI:spiffe://example/ann, "
            "email:ann@example.com, CN:ann or SHA256:FINGERPRINT"
        )
    if known == FINGERPRINT:
        value = value.replace(":", "").lower()
        if not _DIGEST.fullmatch(value):
            raise ValueError(
                f"{text!r}: a fingerprint is 64 hex digits: `openssl x509 -in FILE -noout -fingerprint -sha256`"
            )
    if known == "DNS" and "*" in value:
        raise ValueError(f"{text!r}: a name with * is not taken for others: write whole names")
    return _name(known, value)


def names_in(certificate: Mapping[str, Any], fingerprint: str) -> tuple[str, ...]:
    """Return the names in a certificate, as the module ssl of Python decodes it.

    A common name counts only if it is the only one: which of several is meant cannot be known.
    """
    alternative = certificate.get("subjectAltName", ())
    names = [_name(kind, str(value)) for kind, value in alternative if kind in _KINDS.values()]
    common = [str(value) for part in certificate.get("subject", ()) for kind, value in part if kind == _COMMON_NAME]
    if len(common) == 1:
        names.append(_name("CN", common[0]))
    return tuple(dict.fromkeys([*names, _name(FINGERPRINT, fingerprint)]))


def _name(kind: str, value: str) -> str:
    folds = kind in ("DNS", FINGERPRINT) and value.isascii()  # some other letters become ASCII, as the sign of Kelvin
    return f"{kind}:{value.lower() if folds else value}"


class CertificateTable:
    """The users by the names in their certificates. A name belongs to one user."""

    def __init__(self, users: Mapping[str, Iterable[str]]) -> None:
        self._owners = {name: user for user, names in users.items() for name in names}
        self._users = set(self._owners.values())

    def __bool__(self) -> bool:
        return bool(self._owners)

    def has_user(self, user: str) -> bool:
        """Whether the user has a certificate."""
        return user in self._users

    def users_of(self, names: Iterable[str]) -> list[str]:
        """Return the users to whom a certificate with these names belongs; more than one if the rules disagree."""
        return list(dict.fromkeys(self._owners[name] for name in names if name in self._owners))
