"""The cases of loadtests.diagnosis, played by real processes: one report over all of them, and a verdict on each.

`python -m tests.analysis.diagnosed DIRECTORY` plays them if they have not been played, and prints the verdicts.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from loadtests.diagnosis.cases import EVERY
from loadtests.diagnosis.play import folder_of, play
from tests.analysis.engines import analysis_of, duckdb
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import blames
from tunnel.analysis.verdicts.verdict import verdict

__all__ = ["diagnose", "gathered"]


def gathered(directory: Path) -> Path:
    """Put the traces of all cases into one directory, as those of one run; return it."""
    together = directory / "all"
    if not together.is_dir():
        together.mkdir()
        for path in sorted(directory.glob("*/*.zst")):
            if path.parent != together:
                os.link(path, together / path.name)
    return together


def diagnose(directory: Path) -> dict[str, Analysis]:
    """Analyse the traces of each case."""
    found = {}
    with duckdb() as engine:
        for case in EVERY:
            folder = folder_of(case)
            found[case.name] = analysis_of(engine, directory / folder, directory / "_tables" / folder)
    return found


def main(directory: Path) -> None:
    """Play the cases if needed, analyse them, and print the verdicts."""
    if not directory.is_dir():
        play(EVERY, directory)
    found = diagnose(directory)
    for case in EVERY:
        of = found[case.name]
        first = blames(of)[0].family if of.totals and blames(of) else "?"
        print(f"{'ok ' if first == case.cause else 'NOT'} {case.name}: {first}, expected {case.cause}")
        for sentence in verdict(of):
            print(f"      {sentence}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
