"""Options of commands that take names."""

import argparse
from collections.abc import Sequence
from typing import Any

__all__ = ["AddNames"]


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
