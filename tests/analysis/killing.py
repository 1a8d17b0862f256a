"""Kills an intake at every single step, then completes it. The test runs this in another process, because it forks."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

from tests.analysis.killed import survives
from tests.analysis.plain import compressed, findings_and_rows, plain, rows_of

__all__ = ["main"]


def main(base: Path) -> None:
    """Print the number of steps at which an intake was killed."""
    traces = base / "traces"
    plain(traces, "first.jsonl", 5)
    findings_and_rows(traces, base / "earlier")
    compressed(traces, "second", 7)
    plain(traces, "third.jsonl", 2)
    step, ended = 0, False
    while not ended:
        step += 1
        work = base / f"tables{step}"
        shutil.copytree(base / "earlier", work)
        ended = survives(lambda work=work: findings_and_rows(traces, work), step, work)  # type: ignore[misc]
        seen = len(rows_of(work))  # a reader now sees all of the new events, or none of them
        assert seen in ((14,) if ended else (5, 14)), (step, seen)
        rows = findings_and_rows(traces, work)[1]
        assert len(rows) == len(set(rows)) == 14, (step, rows)
        assert len(list((work / "events").iterdir())) == 2
        assert not list((work / "staged").glob("*"))
    print(step - 1)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
