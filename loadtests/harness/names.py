"""Options of commands that take names."""

import argparse
from collections.abc import Sequence
from typing import Any, Protocol, TypeVar

__all__ = ["AddNames", "chosen"]


class _HasName(Protocol):
    @property
    def name(self) -> str: ...


_Named = TypeVar("_Named", bound=_HasName)


class AddNames(argparse.Action):
    """The action of an option like `--only a,b`. If the option is repeated, all of its names are taken.

    The value is one text: all names in the order in which they were given, separated by commas.
    """

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[Any] | None,
        option_string: str | None = None,
    ) -> None:
        known = getattr(namespace, self.dest)
        setattr(namespace, self.dest, f"{known},{values}" if known else values)


def chosen(parser: argparse.ArgumentParser, names: str, known: tuple[_Named, ...]) -> list[_Named]:
    """Return those that the option names, all without it, in their own order. End the command if one is unknown."""
    wanted = names.split(",") if names else [one.name for one in known]
    if unknown := set(wanted) - {one.name for one in known}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(one.name for one in known)}")
    return [one for one in known if one.name in wanted]
