"""What a new configuration changes for users: their tokens, and their rules."""

from collections.abc import Iterator

from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.tokens import Key, TokenTable
from tunnel_servlet.audit.event import AuditEvent, Kind

__all__ = ["changes"]

_LINES_MAX = 50  # in one event


def changes(before: tuple[TokenTable, GrantTable], after: tuple[TokenTable, GrantTable]) -> Iterator[AuditEvent]:
    """Yield an event for each token that was added, revoked or given other terms, and for each user and each group
    whose rules were changed."""
    yield from _tokens(before[0], after[0])
    yield from _rules(before[1], after[1])


def _tokens(before: TokenTable, after: TokenTable) -> Iterator[AuditEvent]:
    old, new = before.keys, after.keys
    for kind, some, others in ((Kind.TOKEN_REVOKED, old, new), (Kind.TOKEN_ADDED, new, old)):
        for key_id, (user, key) in some.items():
            if not _is_same(others.get(key_id), user, key):
                yield AuditEvent(event=kind, user=user, token=key_id)
    for key_id, (user, key) in new.items():
        known = old.get(key_id)
        if known is not None and _is_same(known, user, key):
            removed, added = _difference(_terms(known[1]), _terms(key))
            if removed or added:
                yield AuditEvent(event=Kind.TOKEN_CHANGED, user=user, token=key_id, added=added, removed=removed)


def _is_same(known: tuple[str, Key] | None, user: str, key: Key) -> bool:
    """Whether this is the same token: another user, or another secret under the same key id, makes it another one."""
    return known is not None and known[0] == user and known[1].sha256 == key.sha256


def _terms(key: Key) -> list[str]:
    """Return one text for each thing that limits the use of the token."""
    terms = {"expires": key.expires, "single_use": "true" if key.single_use else "", "endpoints_max": key.endpoints_max}
    return [f"{name} {value}" for name, value in terms.items() if value]


def _rules(before: GrantTable, after: GrantTable) -> Iterator[AuditEvent]:
    old, new = _owned(before), _owned(after)
    for owner in dict.fromkeys((*old, *new)):
        removed, added = _difference(old.get(owner, []), new.get(owner, []))
        if removed or added:
            user, group = owner
            text = "" if user else "these rules hold for the group" if group else "these rules hold for everyone"
            yield AuditEvent(
                event=Kind.RULES_CHANGED,
                user=user,
                group=group,
                text=text,
                added=_some(added),
                removed=_some(removed),
            )


def _owned(table: GrantTable) -> dict[tuple[str, str], list[str]]:
    """Return what the table allows, by user and group; what it allows everyone has neither."""
    found = {(user, ""): _lines(grant) for user, grant in table.grants.items()}
    found |= {("", group): _lines(grant) for group, grant in table._groups.items()}  # noqa: SLF001 - only the audit asks for them
    found["", ""] += [f"names_may_resolve_to {network}" for network in table._resolvable]  # noqa: SLF001
    return found


def _difference(old: list[str], new: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines that are gone, and those that are new."""
    return [line for line in old if line not in new], [line for line in new if line not in old]


def _lines(grant: Grant) -> list[str]:
    """Return one text for each thing that the grant allows."""
    lists = {
        "connect": [rule.text for rule in grant.connect],
        "services": grant.services,
        "listen": grant.listen,
        "public": grant.public,
        "public_hosts": grant.public_hosts,
        "certificates": grant.certificates,
        "rate": [f"{grant.rate} B/s"] if grant.rate else (),
        "rates": [f"{rule} = {rate} B/s" for rule, rate in grant.rates],
        "exit": ["true"] if grant.exit else (),
    }
    return [f"{key} {value}" for key, values in lists.items() for value in values]


def _some(lines: list[str]) -> list[str]:
    more = len(lines) - _LINES_MAX
    return lines if more <= 0 else [*lines[:_LINES_MAX], f"and {more} more"]
