"""The export of traces as qlog (draft-ietf-quic-qlog-main-schema): JSON text sequences, one file for each node.

Events and fields have qlog's names where qlog has them. Our own events keep their names, in a namespace of their own,
as the draft requires.
"""

import hashlib
import io
from collections import OrderedDict
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tunnel.analysis.engines.folders import LocalFolder
from tunnel.analysis.kept.intake import trace_files, unfinished_files
from tunnel.traces.record import TraceRecord
from tunnel.traces.salvage import examine

__all__ = ["export", "qlog_event"]

_SEPARATOR = b"\x1e"  # RFC 7464
_QUIC = frozenset(
    {
        "packet_sent", "packet_received", "packet_dropped", "packet_buffered", "packets_acked", "timer_updated",
        "connection_closed", "connection_state_updated", "stream_data_moved",
    }
)  # fmt: skip
_PACKET = {"packet_type": "packet_type", "sequence": "packet_number"}
_METRICS = {
    "rtt_us": "latest_rtt", "srtt_us": "smoothed_rtt", "rto_us": "rto", "in_flight_bytes": "bytes_in_flight",
    "backoff": "pto_count",
}  # fmt: skip
_SKIPPED = frozenset({"time_us", "node", "event", "writer", "number", "connection"})
_OPEN_MAX = 64  # files that are open at a time
_NODES_MAX = 1000  # with files of their own; a trace of another machine may name millions
_OTHERS = "other nodes"
_NAME_BYTES_MAX = 200  # file systems take 255


def export(directory: Path, output: Path) -> list[Path]:
    """Write each node's events to a file of its own, in the order in which the node recorded them; return the files.

    A file that is still being written, or that a process left behind when it died, is read up to its last whole frame.
    """
    decoder = msgspec.json.Decoder(TraceRecord)
    nodes = _NodeFiles(output)
    try:
        folder = LocalFolder(directory)
        for file in trace_files(folder) + unfinished_files(folder):
            for part in examine(directory / file.name)[1]:
                for line in io.BytesIO(part):  # one at a time: a file of another machine may be nothing but newlines
                    try:
                        record = decoder.decode(line)
                    except ValueError:
                        continue  # a record of another version, or a damaged line; the report names them
                    nodes.write(record.node, qlog_event(record))
    finally:
        nodes.close()
    return nodes.paths


def qlog_event(record: TraceRecord) -> dict[str, Any]:
    """Return a record as a qlog event. Times are in milliseconds of the node's own clock."""
    namespace = "quic" if record.event in _QUIC else "tunnel"
    data: dict[str, Any] = {}
    header: dict[str, Any] = {}
    for field in msgspec.structs.fields(TraceRecord):
        value = getattr(record, field.name)
        if field.name in _SKIPPED or value == field.default:
            continue
        if field.name in _PACKET:
            header[_PACKET[field.name]] = value
        elif field.name in _METRICS:
            is_time = field.name.endswith("_us")
            data[_METRICS[field.name]] = value / 1000 if is_time else value
        elif field.name == "cause":
            data["trigger"] = value
        elif field.name == "size_bytes":
            data["raw"] = {"length": value}
        else:
            data[field.name] = value
    if header:
        data["header"] = header
    event: dict[str, Any] = {"time": record.time_us / 1000, "name": f"{namespace}:{record.event}", "data": data}
    if record.connection:
        event["group_id"] = f"{record.connection:08x}"
    return event


class _NodeFiles:
    """The files of the nodes. Nodes beyond the limit share one. Only a few files are open at a time."""

    def __init__(self, output: Path) -> None:
        self._output = output
        self._paths: dict[str, Path] = {}
        self._taken: set[str] = set()  # names of files, in small letters: some file systems know no others
        self._open: OrderedDict[str, BinaryIO] = OrderedDict()  # by node; the one that was used last is the last

    @property
    def paths(self) -> list[Path]:
        return list(self._paths.values())

    def write(self, node: str, event: dict[str, Any]) -> None:
        """Add an event to the file of a node."""
        if node not in self._paths and len(self._paths) >= _NODES_MAX:
            node = _OTHERS
        if node not in self._paths:
            self._begin(node)
        _write(self._file(node, "ab"), event)

    def close(self) -> None:
        """Close all files."""
        while self._open:
            self._open.popitem()[1].close()

    def _begin(self, node: str) -> None:
        self._output.mkdir(parents=True, exist_ok=True)
        self._paths[node] = self._output / f"{self._name(node)}.sqlog"
        header = {
            "file_schema": "urn:ietf:params:qlog:file:sequential",
            "serialization_format": "application/qlog+json-seq",
            "title": f"tunnel: {node}",
            "trace": {
                "common_fields": {
                    "time_format": "relative_to_epoch",
                    "reference_time": {"clock_type": "monotonic"},
                },
                "vantage_point": {"name": node, "type": "network" if node.startswith("relay") else "client"},
            },
        }
        _write(self._file(node, "wb"), header)

    def _name(self, node: str) -> str:
        """Return a name for a file that no other node has."""
        safe = "".join(letter if letter.isalnum() or letter in "-_. " else "_" for letter in node) or "unnamed"
        if len(safe.encode()) > _NAME_BYTES_MAX or safe.lower() in self._taken:
            short = safe.encode()[:_NAME_BYTES_MAX].decode(errors="ignore")
            safe = f"{short}-{hashlib.sha256(node.encode()).hexdigest()[:16]}"
        self._taken.add(safe.lower())
        return safe

    def _file(self, node: str, mode: str) -> BinaryIO:
        if node not in self._open:
            if len(self._open) >= _OPEN_MAX:
                self._open.popitem(last=False)[1].close()
            self._open[node] = _open(self._paths[node], mode)
        self._open.move_to_end(node)
        return self._open[node]


def _open(path: Path, mode: str) -> BinaryIO:
    return open(path, mode)  # type: ignore[return-value]


def _write(file: BinaryIO, value: dict[str, Any]) -> None:
    file.write(_SEPARATOR + msgspec.json.encode(value) + b"\n")
