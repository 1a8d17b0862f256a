"""Makes text from elsewhere safe to show: it can neither control a terminal nor change the order of letters there."""

import re
from unicodedata import category

__all__ = ["ascii_json", "counted", "no_answer", "printable", "printable_lines"]

_LAYOUT = re.compile(r"([\n\t])")
_NOT_PLAIN = re.compile(r"[^\n -~]")


def printable(text: str) -> str:
    """Return the text on one line, with an escape such as \\x1b in place of each character that does not print.

    These are the ones for which `str.isprintable` is false, among them all control characters (C0, C1, DEL),
    bidirectional controls, separators of lines and paragraphs, and lone surrogates. Spaces of all kinds stay.
    """
    return text if text.isprintable() else "".join(map(_shown, text))


def printable_lines(text: str) -> str:
    """Do as `printable`, but keep newlines and tabs: for text whose lines the program itself has laid out."""
    if text.isprintable():
        return text
    return "".join(part if part in ("\n", "\t") else printable(part) for part in _LAYOUT.split(text))


def counted(count: int, noun: str) -> str:
    """Return "1 note", "2 notes"."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def no_answer(seconds: float, why: str) -> str:
    """Return "no answer for 2 s", with the reason if it is known."""
    return f"no answer for {seconds:.0f} s" + (f" ({why})" if why else "")


def ascii_json(text: str) -> str:
    """Return the same JSON in ASCII: outside of strings it has no other characters, and there they can be escaped."""
    return _NOT_PLAIN.sub(_unicode_escape, text)


def _shown(letter: str) -> str:
    if letter.isprintable() or category(letter) == "Zs":
        return letter
    return letter.encode("unicode_escape").decode()


def _unicode_escape(found: re.Match[str]) -> str:
    units = found[0].encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[place : place + 2].hex()}" for place in range(0, len(units), 2))
