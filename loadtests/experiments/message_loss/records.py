"""The records of the experiment: one trace record for each message at each stage, which Spark can count again."""

import enum
from pathlib import Path
from types import TracebackType
from typing import Self

from loadtests.experiments.message_loss.statistics import Phase, PhaseStatistics
from tunnel.system.clock import now_us
from tunnel.traces.jsonl import JsonLinesWriter, read_records
from tunnel.traces.record import TraceSource

__all__ = ["Recorder", "Stage", "received_ids"]


class Stage(enum.StrEnum):
    """The stages that a message reaches, as values of `event`."""

    PUBLISHED = "message_published"
    BUFFERED = "message_buffered"
    WRITTEN = "message_written"
    RECEIVED = "message_received"


class Recorder:
    """Writes the records of one node. `sequence` is the id of the message, `cause` the sender's phase."""

    def __init__(self, directory: Path, node: str, statistics: PhaseStatistics | None = None) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._writer = JsonLinesWriter(directory / f"{node}.jsonl")
        self._source = TraceSource(self._writer, node)
        self._statistics = statistics

    def published(self, number: int, size_bytes: int) -> None:
        """Record that the sender queued a message."""
        self._write(Stage.PUBLISHED, number, size_bytes)

    def buffered(self, number: int, size_bytes: int) -> None:
        """Record that a message was moved to the byte buffer."""
        self._write(Stage.BUFFERED, number, size_bytes)

    def written(self, number: int, size_bytes: int) -> None:
        """Record that the socket took a message."""
        self._write(Stage.WRITTEN, number, size_bytes)

    def received(self, number: int, size_bytes: int) -> None:
        """Record that this receiver got a message."""
        self._write(Stage.RECEIVED, number, size_bytes)

    def _write(self, stage: Stage, number: int, size_bytes: int) -> None:
        phase = self._statistics.phase if self._statistics is not None else Phase.BEFORE
        cause = phase.name.lower() if self._statistics is not None else ""
        self._source.tell(stage, now_us(), sequence=number, size_bytes=size_bytes, cause=cause)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._writer.close()


def received_ids(file: Path) -> list[int]:
    """Return the ids in a receiver's file, in the order of arrival."""
    return [record.sequence for record in read_records(file) if record.event == Stage.RECEIVED]
