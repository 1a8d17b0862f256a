"""The calls that a broker answers: their codes, fields and limits.

Every call is a frame of `tunnel.messages.calls.frames`. Fields are text; lists of numbers are separated by commas.

| code | fields of the request | fields of the answer |
|---|---|---|
| APPEND | `durable`; the body is a message set | `offset` |
| PRODUCE | `durable`, `at`, `priority`, `ttl_ms`; the body is a produce request | `partitions`, `offsets` |
| FETCH | `topic`, `partition`, `offset`, `bytes`, `wait_ms`, `stay`, `gather` | `first`, `max`, `next`, `offset`, \
`redirect` |
| COMMIT | `group`, `topic`, `partition`, `offset`, `force`, `member` | `offset` |
| POSITIONS | `group` | the body is a JSON list of `PositionReport` |
| JOIN | `group`, `topic`, `member`, `generation`, `wait_ms` | `generation`, `partitions`, `offsets`, `ends` |
| LEAVE | `group`, `topic`, `member` | |
| TOPICS | | the body is a JSON list of `TopicReport` |
| CREATE | `topic`; the body is a JSON `TopicSpec` | |
| DELETE_TOPIC | `topic` | `partitions`, their number |
| DELETE_GROUP | `group` | `positions`, their number |
| METRICS | | the body is a JSON object of numbers |

An answer of the code DISCARDED has the fields of PRODUCE, too: -1 stands for the offset of a set that was discarded,
and the others are stored. In `ends`, -1 stands for the end of a partition that is not open.
"""

from __future__ import annotations

import re

import msgspec

from tunnel.messages.calls.calls import Request, Response
from tunnel.messages.errors import OffsetOutOfRangeError, RemoteCallError

__all__ = [
    "APPEND",
    "COMMIT",
    "CONFLICT",
    "CORRUPT",
    "CREATE",
    "DELETE_GROUP",
    "DELETE_TOPIC",
    "DISCARDED",
    "FETCH",
    "JOIN",
    "LEAVE",
    "LIMIT",
    "MALFORMED",
    "METRICS",
    "NOT_ALLOWED",
    "NOT_MASTER",
    "NOT_OWNER",
    "OUT_OF_RANGE",
    "POSITIONS",
    "PRODUCE",
    "REASONS",
    "STORAGE",
    "TOPICS",
    "UNKNOWN",
    "PartitionReport",
    "PositionReport",
    "TopicReport",
    "check_name",
    "check_range",
    "join_numbers",
    "number_field",
    "numbers",
    "place_fields",
    "text_field",
]

# Codes of requests. A partition that is served without a broker answers APPEND and FETCH.
APPEND, FETCH = 120, 121
PRODUCE, COMMIT, POSITIONS, JOIN, LEAVE, TOPICS, CREATE, METRICS, DELETE_TOPIC, DELETE_GROUP = range(122, 132)

MALFORMED = 130  # codes of answers
CORRUPT = 131
UNKNOWN = 132  # there is no such topic or partition
LIMIT = 133  # a limit of the broker is reached
NOT_MASTER = 134  # this is a replica
STORAGE = 135  # the disk is full or failed: nothing was stored, try again later
NOT_OWNER = 136  # another member of the group has the partition now
OUT_OF_RANGE = 137  # no such offset
CONFLICT = 138  # the next offset is not the one that the request expects
DISCARDED = 139  # a topic in memory is full, and its policy discards the new messages
NOT_ALLOWED = 140  # it belongs to another user, or is in use

REASONS = {
    MALFORMED: "malformed",
    CORRUPT: "corrupt",
    UNKNOWN: "unknown",
    LIMIT: "limit",
    NOT_MASTER: "not_master",
    STORAGE: "storage",
    NOT_OWNER: "not_owner",
    OUT_OF_RANGE: "out_of_range",
    CONFLICT: "conflict",
    DISCARDED: "discarded",
    NOT_ALLOWED: "not_allowed",
}

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
_OFFSET_MAX = (1 << 63) - 1


class PartitionReport(msgspec.Struct):
    """A partition as `tunnel-broker topics` shows it."""

    partition: int
    first: int
    end: int
    size_bytes: int
    problem: str = ""


class TopicReport(msgspec.Struct):
    """A topic as `tunnel-broker topics` shows it."""

    topic: str
    storage: str
    partitions: list[PartitionReport]


class PositionReport(msgspec.Struct):
    """How far a group has read a partition."""

    group: str
    topic: str
    partition: int
    offset: int
    end: int | None
    """The offset after the newest message; None while the partition cannot be opened."""

    @property
    def lag(self) -> int | None:
        """The number of messages that the group has not read yet; None if it is unknown."""
        return None if self.end is None else max(0, self.end - self.offset)


def check_name(kind: str, name: str) -> str:
    """Return the name of a topic, group or member. RemoteCallError MALFORMED if it is not safe as a file's name."""
    if _NAME.fullmatch(name) is None:
        raise RemoteCallError(
            MALFORMED,
            f"{name[:100]!r} is no name for a {kind}: use 1 to 200 letters, digits, dots, hyphens and underscores, and "
            "begin with a letter or digit",
        )
    return name


def text_field(request: Request, name: str) -> str:
    """Return a field of a request that must be a name."""
    return check_name(name, (request.fields or {}).get(name, ""))


def number_field(request: Request, name: str, default: int | None = None, low: int = 0, high: int = _OFFSET_MAX) -> int:
    """Return a number among the fields of a request, or `default` if it is missing.

    RemoteCallError MALFORMED if it is out of bounds, or missing without a default.
    """
    text = (request.fields or {}).get(name)
    if text is None and default is not None:
        return default
    try:
        value = int(text or "")
    except ValueError:  # int() also refuses a text of more than 4,300 digits, without spending time on it
        value = None
    if value is None or not low <= value <= high:
        shown = "nothing" if text is None else repr(text[:50])
        raise RemoteCallError(MALFORMED, f"the field {name} must be a number from {low} to {high}, not {shown}")
    return value


def check_range(offset: int, response: Response) -> int:
    """Return the end of the log that answered a fetch. OffsetOutOfRangeError if that log lacks the offset, and
    RemoteCallError if the answer does not say what it has."""
    fields = response.fields or {}
    try:
        first, end = int(fields["first"]), int(fields["max"])
    except (KeyError, ValueError):
        raise RemoteCallError(MALFORMED, "the answer to a fetch lacks the bounds of the log") from None
    if not first <= offset <= end:
        raise OffsetOutOfRangeError(offset, first, end)
    return end


def place_fields(topic: str, partition: int) -> dict[str, str]:
    """Return the fields of a fetch that name the partition. One that is served without a broker needs none."""
    return {"topic": topic, "partition": str(partition)} if topic else {}


def join_numbers(values: list[int]) -> str:
    """Return numbers as the text of a field."""
    return ",".join(map(str, values))


def numbers(text: str) -> list[int]:
    """Return the numbers in the text of a field."""
    return [int(part) for part in text.split(",") if part]
