"""Options that take names may be repeated."""

import argparse

import pytest

from loadtests.harness.names import AddNames


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        ([], ""),
        (["--only", "a,b"], "a,b"),
        (["--only", "a", "--only=b,c", "--only", "d"], "a,b,c,d"),
        (["--only", "", "--only", "a"], "a"),
    ],
)
def test_the_names_of_repeated_options_add_up(arguments: list[str], names: str) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", action=AddNames, default="", metavar="NAMES")
    for _ in range(2):  # the parser keeps no names of the first call
        assert parser.parse_args(arguments).only == names
