"""Traces as JSON lines in a plain file, for tests and small runs. Writing is synchronous and drops no record."""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import msgspec

from tunnel.traces.record import TraceRecord
from tunnel.traces.salvage import examine

__all__ = ["JsonLinesWriter", "decode_record", "encode_record", "read_records", "read_trace"]

_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(TraceRecord)


def encode_record(record: TraceRecord) -> bytes:
    """Return the record as a JSON line without a newline. Equal records give equal bytes."""
    return _ENCODER.encode(record)


def decode_record(line: bytes | str) -> TraceRecord:
    """Return the record in a JSON line. Raise ValueError when the line is not a record of this version."""
    return _DECODER.decode(line)


class JsonLinesWriter:
    """A trace sink: call it with records, then close it (or use it in a `with`). The file is replaced if it exists."""

    def __init__(self, path: str | Path) -> None:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)  # only the user may read a trace
        self._file = open(descriptor, "wb")  # noqa: SIM115 - close() closes it
        self._writer = Path(path).stem
        self._number = 0

    def __call__(self, record: TraceRecord) -> None:
        """Write one record, with its number. Raise ValueError after close()."""
        self._number += 1
        msgspec.structs.force_setattr(record, "writer", self._writer)
        msgspec.structs.force_setattr(record, "number", self._number)
        self._file.write(encode_record(record) + b"\n")

    def close(self) -> None:
        """Write the buffered records and close the file. A second call has no effect."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def read_records(path: str | Path) -> Iterator[TraceRecord]:
    """Yield the records of a plain file in order. Raise ValueError, with file and line, if a line does not decode."""
    with Path(path).open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            try:
                record = decode_record(line)
            except ValueError as error:
                raise ValueError(f"{path}:{number}: {error}") from error
            yield record


def read_trace(path: str | Path) -> list[TraceRecord]:
    """Return the intact records of a trace file, plain or compressed."""
    _, parts = examine(Path(path))
    return [decode_record(line) for part in parts for line in part.splitlines()]
