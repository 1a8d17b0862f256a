"""The times for which a writer has no records: before its first, after its last, and where records are missing.

Records go missing when the writer's queue is full or its disk does not take them, and when a part of a file is damaged.
Events of such a time are unknown, and must not be taken for a loss or a silence of the network.
"""

from typing import Any

__all__ = ["RANGE_BITS", "SLACK_US", "by_writer", "merged"]

SLACK_US = 100_000  # records of several threads are in the order of their times only roughly
RANGE_BITS = 20  # a window of the query holds about a million records
_EVER_US = 1 << 60

Rows = list[dict[str, Any]]


def merged(rows: Rows) -> dict[str, list[tuple[int, int]]]:
    """Return the holes of each writer in order, each widened by SLACK_US at both ends.

    Holes that then touch or overlap are joined. `rows` are those of the query `holes`.
    """
    found: dict[str, list[tuple[int, int]]] = {}
    for row in sorted(rows, key=lambda row: (row["writer"], row["begin_us"])):
        begin, end = row["begin_us"] - SLACK_US, row["end_us"] + SLACK_US
        holes = found.setdefault(row["writer"], [])
        if holes and begin <= holes[-1][1]:
            holes[-1] = (holes[-1][0], max(end, holes[-1][1]))
        else:
            holes.append((begin, end))
    return found


def by_writer(files: Rows, inner: dict[str, list[tuple[int, int]]]) -> Rows:
    """Return one row for each writer: its name, its holes, and the time of its last record (`until_us`).

    A writer's first hole ends with its first record. The time after its last record is not among the holes: it begins
    at `until_us`. `files` are the rows of the query `health`, and `inner` has the holes between the records of each
    writer.
    """
    spans: dict[str, tuple[int, int]] = {}
    for row in files:
        if row["begin_us"] is not None:
            begin, end = spans.get(row["writer"], (row["begin_us"], row["end_us"]))
            spans[row["writer"]] = (min(begin, row["begin_us"]), max(end, row["end_us"]))
    return [
        {
            "writer": writer,
            "until_us": end,
            "holes": [
                {"begin_us": first, "end_us": last} for first, last in [(-_EVER_US, begin), *inner.get(writer, [])]
            ],
        }
        for writer, (begin, end) in spans.items()
    ]
