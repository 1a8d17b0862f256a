"""The command lines that messages propose. They keep the options that the user has given, except secrets."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Collection, Mapping, Sequence
from typing import TypeAlias

from tunnel.ground.relay_options import OPTIONS, is_given

__all__ = ["LOGIN_OPTIONS", "Given", "given_options", "line", "with_options"]

Given: TypeAlias = Mapping[str, Sequence[str]]
"""The options that were given, in the order of help texts, each with its values: none, one or several."""

LOGIN_OPTIONS = tuple(option.flag for option in OPTIONS.values() if option.is_stored)
"""The options that `tunnel login` has, too."""

_FLAGS = {"relay": "--relay", "token_file": "--token-file"} | {name: one.flag for name, one in OPTIONS.items()}
_COMMAND = re.compile(r"`(tunnel (?:doctor|forward|proxy)(?: [^`]*)?)`")


def given_options(arguments: argparse.Namespace) -> Given:
    """Return the options of a command line that say which relay is used, and how; secrets are replaced by words."""
    found: dict[str, list[str]] = {}
    if getattr(arguments, "url", ""):  # of `tunnel login`
        found["--relay"] = [arguments.url]
    for name, flag in _FLAGS.items():
        value = getattr(arguments, name, None)
        if not is_given(value):
            continue
        if name in ("relay", "token_file"):
            value = str(value).split("\n")  # several, as `Joined` keeps them
        values = value if isinstance(value, list) else [] if value is True else [value]
        shown = [_without_secret(name, f"{each:g}" if isinstance(each, float) else str(each)) for each in values]
        found[flag] = shown if name == "token_file" else list(dict.fromkeys(shown))  # one file for each relay
    return found


def line(command: str, given: Given, *, only: Collection[str] | None = None, without: Collection[str] = ()) -> str:
    """Return a command with the options that were given. `only`: the options that the command has, if not all."""
    words = [command]
    for option, values in given.items():
        if (only is None or option in only) and option not in without:
            words += [f"{option} {shlex.quote(value)}" for value in values] or [option]
    return " ".join(words)


def with_options(text: str, given: Given) -> str:
    """Return a message in which each command in backticks has the options that were given."""
    return _COMMAND.sub(lambda found: f"`{line(found[1], given)}`", text)


def _without_secret(name: str, value: str) -> str:
    """Return the value of an option as it may be printed."""
    if not value.startswith("@") and (name == "headers" or (name == "proxy" and "@" in value)):
        return "@FILE"
    return value
