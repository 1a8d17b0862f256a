"""The command that finds out why a target was denied. The text of the refusal tells whose rules deny it."""

import re
import shlex

__all__ = ["EXIT_DENIES", "rule_check"]

EXIT_DENIES = "in the configuration of the exit"  # in the texts of exits; see `Dialer`
_TABLE = re.compile(r'\[users\.(?:([A-Za-z0-9_-]+)|"([^"]+)")\]')


def rule_check(text: str, target: str) -> str:
    """Return the command with which the relay's operator finds out why the target is denied; empty if the rules of an
    exit deny it, which the relay does not know. `text` is the refusal, which mostly names the user's table of rules."""
    if EXIT_DENIES in text:
        return ""
    found = _TABLE.search(text)
    user = "NAME" if found is None else found.group(1) or found.group(2)
    return f"tunnel-relay rule check {shlex.quote(user)} {shlex.quote(target)} --resolve"
