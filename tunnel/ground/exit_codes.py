"""The exit codes of all commands, in one table for errors and help texts."""

__all__ = [
    "DENIED",
    "EXCEEDED",
    "EXIT_CODES",
    "INTEGRITY",
    "INTERNAL",
    "INTERRUPTED",
    "LOST",
    "NOT_AUTHENTICATED",
    "OK",
    "UNREACHABLE",
    "USAGE",
]

_MEANINGS = {
    0: "ok",
    1: "a defect of tunnel",
    2: "usage or configuration",
    3: "unreachable",
    4: "not authenticated",
    5: "denied by rule",
    6: "lost or timed out",
    7: "altered data",
    8: "a bound of --fail-if",
    130: "interrupted",
}
OK, INTERNAL, USAGE, UNREACHABLE, NOT_AUTHENTICATED, DENIED, LOST, INTEGRITY, EXCEEDED, INTERRUPTED = _MEANINGS
EXIT_CODES = "exit codes: " + ", ".join(f"{code} {meaning}" for code, meaning in _MEANINGS.items())
"""The table on one line, for the end of a command's help."""
