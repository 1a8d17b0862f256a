"""Streams whose traces show one end, both ends, or not all records; each stream has its own nodes and writers."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tunnel.traces import TraceCause, TraceEvent, TraceRecord
from tunnel.traces.jsonl import JsonLinesWriter, decode_record, encode_record

__all__ = [
    "AWAY_US",
    "BYTES",
    "CUT",
    "ENDS",
    "IDLE_US",
    "PACKETS",
    "PAYLOAD",
    "RECEIPT_US",
    "TRIP_US",
    "Ends",
    "stream_of",
    "write_ends",
]

Fields = dict[str, Any]

PACKETS = 2_000
SIZE = 124
PAYLOAD = SIZE - 24
BYTES = PACKETS * PAYLOAD
GAP_US = 1_000  # between two packets
TRIP_US = 300_000
RECEIPT_US = 7_760  # the round trip that the transport measures: it counts from the receipt, which comes late
RTO_US = 1_000_000
REPAIR_US = 400_000
IDLE_US = 60_000_000  # after the first half of the packets, nothing is sent for this long
AWAY_US = 7_000_000_000  # the receiver's clock is ahead by this
CUT = 613
CUT_FROM = 300


@dataclass(frozen=True, slots=True)
class Ends:
    """A stream, and what its trace contains."""

    name: str
    lost: tuple[int, ...] = ()
    """Packets whose first attempt is lost."""
    sender: bool = True
    receiver: bool = True
    acknowledged: bool = True
    arrives: bool = True
    cut_sender: bool = False
    cut_receiver: bool = False
    reported: bool = False
    """The writer reports the records that are cut, at the place where a TraceWriter would report them."""
    ends_at: int = PACKETS
    """The receiver's trace ends before this packet, and nothing is acknowledged from there on."""
    gives_up: bool = False
    """The receiver's trace goes on beyond `ends_at`, so the packets from there on were lost, with all their repeats."""
    waits: bool = False
    """Each packet is sent when the one before it has been acknowledged."""


ENDS = (
    Ends("whole", lost=(500, 501)),
    Ends("receiver cut", lost=(1_900,), cut_receiver=True),
    Ends("receiver cut and no acknowledgements", lost=(1_900,), cut_receiver=True, acknowledged=False),
    Ends("receiver dropped records", cut_receiver=True, reported=True, acknowledged=False),
    Ends("sender cut", cut_sender=True),
    Ends("sender alone", receiver=False),
    Ends("sender alone, with repeats", lost=(500,), receiver=False),
    Ends("receiver alone", sender=False),
    Ends("nothing acknowledged", receiver=False, acknowledged=False),
    Ends("nothing arrived", arrives=False),
    Ends("receiver killed", ends_at=1_000),
    Ends("one at a time", waits=True),
    Ends("given up", ends_at=1_000, gives_up=True),
)


def stream_of(ends: Ends) -> int:
    """The stream's id."""
    return 5_000 + 10 * ENDS.index(ends)


def write_ends(directory: Path) -> None:
    """Write the traces of all streams to the directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for ends in ENDS:
        records = sorted(_records(ends), key=lambda record: record.time_us % AWAY_US)
        for role in ("sender", "receiver"):
            if not getattr(ends, role):
                continue
            path = directory / f"{role}-{stream_of(ends)}.jsonl"
            with JsonLinesWriter(path) as trace:
                for record in _with_state(records, stream_of(ends)) if role == "sender" else records:
                    if record.node.startswith(role):
                        trace(record)
            if getattr(ends, f"cut_{role}"):
                _cut(path, reported=ends.reported)


def _sent_us(ends: Ends, number: int) -> int:
    if ends.waits:
        return number * (TRIP_US + GAP_US)
    return number * GAP_US + (IDLE_US if number >= PACKETS // 2 else 0)


def _records(ends: Ends) -> Iterator[TraceRecord]:
    stream = stream_of(ends)
    sender: Fields = {"node": f"sender-{stream}", "connection": stream, "peer": stream + 1}
    receiver: Fields = {"node": f"receiver-{stream}", "connection": stream + 1, "peer": stream}
    arrived_us, waiting = 0, 0
    for number in range(20 if ends.waits else PACKETS):
        last = 2 if number >= ends.ends_at else int(number in ends.lost)
        for attempt in range(last + 1):
            sent_us = _sent_us(ends, number) + attempt * REPAIR_US
            packet: Fields = {"packet_type": 4, "sequence": number, "attempt": attempt, "size_bytes": SIZE}
            cause = TraceCause.RETRANSMIT_TIMEOUT if attempt else ""
            yield TraceRecord(time_us=sent_us, event=TraceEvent.PACKET_SENT, cause=cause, **packet, **sender)
        if not ends.arrives or number >= ends.ends_at:
            continue
        received_us = sent_us + TRIP_US // 2
        yield TraceRecord(time_us=AWAY_US + received_us, event=TraceEvent.PACKET_RECEIVED, **packet, **receiver)
        arrived_us, waiting = max(arrived_us, received_us), waiting + 1
        is_gap_filled = not any(_sent_us(ends, lost) + REPAIR_US > arrived_us for lost in ends.lost if lost < number)
        if ends.acknowledged and is_gap_filled:
            yield TraceRecord(
                time_us=arrived_us + TRIP_US // 2,
                event=TraceEvent.PACKETS_ACKED,
                sequence=number,
                count=waiting,
                size_bytes=waiting * PAYLOAD,
                rtt_us=RECEIPT_US,
                **sender,
            )
            waiting = 0
    if ends.gives_up:
        later_us = AWAY_US + _sent_us(ends, PACKETS) + IDLE_US
        yield TraceRecord(time_us=later_us, event=TraceEvent.LOOP_LAG, latency_us=5_000, node=f"receiver-{stream}")


def _with_state(records: list[TraceRecord], stream: int) -> Iterator[TraceRecord]:
    """Add the sender's state to its records: the bytes in flight, and what the sender has measured so far."""
    in_flight, srtt_us = 0, 0
    for record in records:
        if record.connection != stream:
            continue
        if record.event == TraceEvent.PACKETS_ACKED:
            in_flight, srtt_us = in_flight - record.size_bytes, RECEIPT_US
        elif not record.attempt:
            in_flight += PAYLOAD
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        fields |= {"in_flight_bytes": in_flight, "srtt_us": srtt_us, "rto_us": RTO_US, "window_bytes": 65_536}
        yield TraceRecord(**fields)


def _cut(path: Path, *, reported: bool) -> None:
    """Take CUT records out of a file."""
    lines = path.read_bytes().splitlines()
    kept = lines[:CUT_FROM] + lines[CUT_FROM + CUT :]
    if reported:
        kept = _reported(lines)
    path.write_bytes(b"\n".join(kept) + b"\n")


def _reported(lines: list[bytes]) -> list[bytes]:
    """Return the lines as a writer whose queue was full leaves them: older records follow the report of the loss.

    The report has the number that follows those of the lost records. So the numbers jump just before the report, and
    not where the lost records would have been written.
    """
    records = [decode_record(line) for line in lines]
    told = records[CUT_FROM + CUT]
    before, after = records[: CUT_FROM - 100], records[CUT_FROM - 100 : CUT_FROM] + records[CUT_FROM + CUT :]
    report = TraceRecord(
        time_us=told.time_us, node=told.writer, event=TraceEvent.TRACE_DROPPED, count=CUT, writer=told.writer
    )
    written, number = [], 0
    for record in [*before, report, *after]:
        number += CUT + 1 if record is report else 1
        fields = {name: getattr(record, name) for name in record.__struct_fields__}
        written.append(encode_record(TraceRecord(**{**fields, "number": number})))
    return written
