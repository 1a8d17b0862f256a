"""The export of traces as qlog (draft-ietf-quic-qlog-main-schema): JSON text sequences, one file for each node.

Events and fields have qlog's names where qlog has them. Our own events keep their names, in a namespace of their own,
as the draft requires.
"""

from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from tunnel.analysis.folders import LocalFolder
from tunnel.analysis.intake import trace_files, unfinished_files
from tunnel.traces.record import TraceRecord
from tunnel.traces.salvage import examine

__all__ = ["export", "qlog_event"]

_SEPARATOR = b"\x1e"  # RFC 7464
_QUIC = frozenset(
    {
        "packet_sent", "packet_received", "packet_dropped", "packet_buffered", "packets_acked", "packet_lost",
        "marked_for_retransmit", "timer_updated", "connection_started", "connection_closed",
        "connection_state_updated", "stream_data_moved", "parameters_set",
    }
)  # fmt: skip
_PACKET = {"packet_type": "packet_type", "sequence": "packet_number"}
_METRICS = {
    "rtt_us": "latest_rtt", "srtt_us": "smoothed_rtt", "rto_us": "rto", "in_flight_bytes": "bytes_in_flight",
    "backoff": "pto_count",
}  # fmt: skip
_SKIPPED = frozenset({"time_us", "node", "event", "writer", "number", "connection"})


def export(directory: Path, output: Path) -> list[Path]:
    """Write each node's events to a file of its own, in the order in which the node recorded them; return the files.

    A file that is still being written, or that a process left behind when it died, is read up to its last whole frame.
    """
    files: dict[str, BinaryIO] = {}
    decoder = msgspec.json.Decoder(TraceRecord)
    try:
        folder = LocalFolder(directory)
        for file in trace_files(folder) + unfinished_files(folder):
            for part in examine(directory / file.name)[1]:
                for line in part.splitlines():
                    try:
                        record = decoder.decode(line)
                    except ValueError:
                        continue  # a record of another version, or a damaged line; the report names them
                    _write(_file(files, record.node, output), qlog_event(record))
    finally:
        for opened in files.values():
            opened.close()
    return [Path(opened.name) for opened in files.values()]


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


def _file(files: dict[str, BinaryIO], node: str, output: Path) -> BinaryIO:
    if node not in files:
        output.mkdir(parents=True, exist_ok=True)
        safe = "".join(letter if letter.isalnum() or letter in "-_." else "_" for letter in node) or "unnamed"
        files[node] = (output / f"{safe}.sqlog").open("wb")  # the caller closes it
        _write(
            files[node],
            {
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
            },
        )
    return files[node]


def _write(file: BinaryIO, value: dict[str, Any]) -> None:
    file.write(_SEPARATOR + msgspec.json.encode(value) + b"\n")
