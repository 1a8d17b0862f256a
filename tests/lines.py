"""Counts the lines of this repository by folder: `python -m tests.lines` in the working tree, `... OLD NEW` in commits.

Every line of a text file that git knows counts, blank ones too. With several commits, the last column is the change
from the first to the last of them.
"""

import argparse
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from loadtests.harness.tree import ROOT

__all__ = ["counted", "group_of", "main", "table"]

PRODUCT = ("tunnel", "servlet", "client")
MEASUREMENTS = "docs/measurements"
GROUPS = ("product", "loadtests", "tests", "documents", MEASUREMENTS, "others")


def group_of(path: str) -> str:
    """Return the group that a file counts in. Documents count as such wherever they lie."""
    place = PurePosixPath(path)
    top = place.parts[0]
    if place.is_relative_to(MEASUREMENTS):
        return MEASUREMENTS
    if place.suffix == ".md":
        return "documents"
    if top in PRODUCT:
        return "product"
    return top if top in GROUPS else "others"


def counted(found: str) -> Counter[str]:
    """Sum up lines of `git grep -z --count`: each is a path, NUL, and a number."""
    groups: Counter[str] = Counter()
    for line in found.splitlines():
        path, _, lines = line.partition("\0")
        groups[group_of(path)] += int(lines)
    return groups


def table(names: Sequence[str], columns: Sequence[Counter[str]]) -> str:
    """Return a table in Markdown: a row for each group, and one for all."""
    head = [*names, "change"] if len(names) > 1 else list(names)
    rows = [f"| lines | {' | '.join(head)} |", "|---" * (len(head) + 1) + "|"]
    for group in (*GROUPS, "all"):
        figures = [column.total() if group == "all" else column[group] for column in columns]
        cells = [f"{figure:,}" for figure in figures]
        if len(figures) > 1:
            cells.append(f"{figures[-1] / figures[0] - 1:+.1%}" if figures[0] else "–")
        rows.append(f"| {group} | {' | '.join(cells)} |")
    return "\n".join(rows)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table for these commits, or for the working tree."""
    parser = argparse.ArgumentParser(prog="python -m tests.lines", description="Count lines by folder.")
    parser.add_argument("commits", nargs="*", metavar="COMMIT", help="count in these commits, not in the working tree")
    commits = parser.parse_args(arguments).commits
    print(table(commits or ["working tree"], [counted(_lines(commit)) for commit in commits or [""]]))
    return 0


def _lines(commit: str) -> str:
    """Return what git counts in a commit, without the commit's name before each path."""
    revision = ["", commit] if commit else ["--untracked", ""]  # "" is the pattern, which every line matches
    command = ["git", "grep", "-I", "-z", "--count", *revision]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(f"git cannot count the lines of {commit or 'the working tree'}: {done.stderr.strip()}")
    return "\n".join(line.removeprefix(f"{commit}:") for line in done.stdout.splitlines())


if __name__ == "__main__":
    sys.exit(main())
