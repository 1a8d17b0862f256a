"""A second count of what the report publishes: plain Python, from the raw lines of the traces, without Spark.

It follows docs/ANALYSIS.md, and shares no code with the analysis.
"""

from __future__ import annotations

import json
import statistics
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from tunnel.traces.salvage import examine

__all__ = ["TOTALS", "Recount", "recount"]

Line = dict[str, Any]
# The totals of a report that have the names of figures here.
TOTALS = (
    *("streams", "both_ends", "packets", "needless", "judged", "lost", "payload_bytes", "useful_bytes", "known_bytes"),
    *("never_arrived", "busy_us"),
)
NUMBERED = {4, 5, 10, 13}
HEADER_BYTES = 24


@dataclass
class Packet:
    """The records of both ends about one packet."""

    sent: list[Line] = field(default_factory=list)
    received: list[Line] = field(default_factory=list)
    acked: list[Line] = field(default_factory=list)
    proven: bool = False
    judged: bool = False
    lost: set[int] = field(default_factory=set)


@dataclass
class Recount:
    """The published numbers."""

    events: int = 0
    streams: int = 0
    both_ends: int = 0
    packets: int = 0
    repeats: int = 0
    needless: int = 0
    judged: int = 0
    lost: int = 0
    payload_bytes: int = 0
    useful_bytes: int = 0
    known_bytes: int = 0
    never_arrived: int = 0
    transitions: Counter[tuple[int, int]] = field(default_factory=Counter)
    trips: list[int] = field(default_factory=list)
    receipts: list[int] = field(default_factory=list)
    busy_us: int = 0
    exchanges: Counter[tuple[str, str, int]] = field(default_factory=Counter)
    stalled_us: int = 0
    stalls: int = 0
    limited_us: int = 0
    unread_us: int = 0
    """The time in which bytes waited for the application."""
    unread_limited_us: int = 0
    """The part of it in which the sender was stalled or had a limit."""
    life_us: int = 0
    asked_us: int = 0
    """The path's part of the time until CONNECT was answered, without stalls."""
    asked_most_us: int = 0
    """The same with all stalls. Only some count: that of a sender which was stopped meanwhile has another cause."""


def recount(directory: Path) -> Recount:
    """Count everything again."""
    found = Recount()
    lines: list[Line] = []
    until: dict[str, int] = {}
    for path in sorted(directory.iterdir()):
        if path.suffix == ".zst":
            lines += [json.loads(line) for part in examine(path)[1] for line in part.splitlines()]
    for line in lines:
        until[line["writer"]] = max(until.get(line["writer"], 0), line["time_us"])
        if line["event"].startswith("exchange_"):
            found.exchanges[line["text"], line["event"], line.get("status", 0)] += 1
    found.events = len(lines)
    streams = _streams(lines)
    found.streams = len(streams)
    ends = {line["connection"]: line for line in lines if line["event"] == "connection_closed"}
    waits = _waits(lines)
    turns: list[tuple[int, int]] = []
    shortest = _shortest(lines, streams, until)
    for stream, packets in streams.items():
        order = _judge(packets, until)
        _count(found, packets, order)
        trips = _trips(packets, order)
        found.trips += trips
        steps = _steps(stream, lines, ends)
        found.receipts += [step["rtt_us"] for step in steps if step.get("rtt_us", 0) > 0]
        is_main = _is_main(streams, stream)
        sender = _Sender(statistics.median_low(trips) if trips else None, is_main)
        sender.follow(steps, until, turns)
        found.stalls += len(sender.stalls)
        found.stalled_us += sum(end - begin for begin, end in sender.stalls)
        found.limited_us += sum(end - begin for begin, end in sender.limits)
        connecting_us = sum(end - begin for begin, end in sender.connecting)
        in_stalls_us = sum(end - begin for begin, end in set(sender.connecting) & set(sender.stalls))
        found.asked_us += min(connecting_us - in_stalls_us, shortest[stream])
        found.asked_most_us += min(connecting_us, shortest[stream])
        if not steps:
            continue
        spans = sender.stalls + sender.limits
        begin_us = steps[0]["time_us"]
        own = [(max(begin, begin_us), end) for begin, end in waits.get(stream, ())]
        unread_us = sum(end - begin for begin, end in own)
        known_us = sum(max(0, min(end, stop) - max(begin, start)) for begin, end in own for start, stop in spans)
        found.unread_us += unread_us
        found.unread_limited_us += known_us
        if is_main:
            last = steps[-1]
            is_ended = last["event"] == "connection_closed"
            end_us = last["time_us"] if is_ended else max(until[last["writer"]], last["time_us"])
            found.life_us += max(end_us, *(end for _, end in own), begin_us) - begin_us
        else:
            found.life_us += sum(end - begin for begin, end in spans) + unread_us - known_us
    found.busy_us = _union(turns)
    return found


def _streams(lines: list[Line]) -> dict[int, dict[int, Packet]]:
    """Stream (the sender's id) -> number -> packet; streams of which only acknowledgements were traced are left out."""
    streams: dict[int, dict[int, Packet]] = defaultdict(lambda: defaultdict(Packet))
    for line in lines:
        event = line["event"]
        if event == "packet_sent" and line["packet_type"] in NUMBERED:
            streams[line["connection"]][line.get("sequence", 0)].sent.append(line)
        elif event == "packet_received" and line["packet_type"] in NUMBERED:
            streams[line["peer"]][line.get("sequence", 0)].received.append(line)
        elif event == "packets_acked":
            streams[line["connection"]][line.get("sequence", 0)].acked.append(line)
    known = {
        stream: packets for stream, packets in streams.items() if any(p.sent or p.received for p in packets.values())
    }
    return {stream: dict(packets) for stream, packets in known.items()}


def _judge(packets: dict[int, Packet], until: dict[str, int]) -> list[Packet]:
    """Return the packets in order; decide what arrived."""
    base = min(
        (min(line["time_us"] for line in (p.sent or p.received)), number)
        for number, p in packets.items() if p.sent or p.received
    )[1]  # fmt: skip
    order = sorted(packets, key=lambda number: (number - base + (1 << 31)) % (1 << 32))
    acked = max((place for place, number in enumerate(order) if packets[number].acked), default=-1)
    arrived = [place for place, number in enumerate(order) if packets[number].received]
    sent = any(p.sent for p in packets.values())
    receivers = {line["writer"] for p in packets.values() for line in p.received}
    delays = [
        min(line["time_us"] for line in p.received) - min(line["time_us"] for line in p.sent)
        for p in packets.values() if p.sent and p.received
    ]  # fmt: skip
    for place, number in enumerate(order):
        packet = packets[number]
        packet.proven = place <= acked
        is_open = False
        if not packet.received and not packet.proven and delays and packet.sent:
            due = min(line["time_us"] for line in packet.sent) + 2 * max(delays) - min(delays)
            is_open = due >= min(until[name] for name in receivers)
            is_open |= len(packet.sent) == 1 and place > max(arrived)
        once = packet.proven and not packet.received and len(packet.sent) == 1
        known = bool(packet.received) or not packet.proven
        packet.judged = bool(sent and arrived) and ((known and not is_open) or once)
        if packet.judged and not once:
            packet.lost = {line.get("attempt", 0) for line in packet.sent} - {
                line.get("attempt", 0) for line in packet.received
            }
    return [packets[number] for number in order if packets[number].sent or packets[number].received]


def _count(found: Recount, packets: dict[int, Packet], order: list[Packet]) -> None:
    both = any(p.sent for p in order) and any(p.received for p in order)
    found.both_ends += both
    before: Packet | None = None
    for packet in order:
        attempts = [line.get("attempt", 0) for line in packet.sent]
        arrived = [line.get("attempt", 0) for line in packet.received]
        size = (packet.sent or packet.received)[0]["size_bytes"]
        has_arrived = bool(arrived) or packet.proven
        found.packets += len(attempts)
        found.repeats += max(0, len(attempts) - 1)
        found.needless += sum(1 for attempt in attempts if arrived and attempt > min(arrived))
        found.judged += len(attempts) if packet.judged else 0
        found.lost += len(packet.lost)
        found.never_arrived += packet.judged and not has_arrived
        if has_arrived and (packet.sent or packet.received)[0]["packet_type"] == 4:
            found.payload_bytes += size - HEADER_BYTES
        if attempts and has_arrived:
            found.useful_bytes += size
        if attempts and (has_arrived or packet.judged):
            found.known_bytes += len(attempts) * size
        if before is not None and both and attempts and before.judged and packet.judged:
            found.transitions[int(0 in before.lost), int(0 in packet.lost)] += 1
        before = packet


def _trips(packets: dict[int, Packet], order: list[Packet], since_us: int = -1 << 62) -> list[int]:
    """For each acknowledgement, the round trip of the last packet that it covers, if this packet and all others that it
    newly covers were sent only once, and it was sent since this time."""
    trips, newly, clean = [], 0, True
    for packet in order:
        newly += 1
        clean &= len(packet.sent) <= 1
        if packet.acked:
            first = min(packet.acked, key=lambda line: line["time_us"])
            if clean and len(packet.sent) == 1 and first["count"] >= newly and packet.sent[0]["time_us"] >= since_us:
                trips.append(max(1, first["time_us"] - packet.sent[0]["time_us"]))
            newly, clean = 0, True
    return trips


def _shortest(lines: list[Line], streams: dict[int, dict[int, Packet]], until: dict[str, int]) -> dict[int, int]:
    """Return the shortest round trip of what each stream sent after CONNECT was answered; else that of its node."""
    answered: dict[int, int] = {}
    for line in lines:
        if line["event"] == "packet_received" and line.get("packet_type") in (2, 3):
            answered[line["connection"]] = min(answered.get(line["connection"], line["time_us"]), line["time_us"])
    own: dict[int, int] = {}
    of_node: dict[str, int] = {}
    of_all: list[int] = []
    nodes: dict[int, str] = {}
    for stream, packets in streams.items():
        order = _judge(packets, until)
        of_all += _trips(packets, order)
        nodes[stream] = next((p.sent[0]["node"] for p in order if p.sent), "")
        late = _trips(packets, order, answered.get(stream, -1 << 62))
        if late:
            own[stream] = min(late)
            of_node[nodes[stream]] = min(of_node.get(nodes[stream], own[stream]), own[stream])
    least = min(of_all, default=0)
    return {stream: own.get(stream, of_node.get(nodes[stream], least)) for stream in streams}


# the sender's time


def _steps(stream: int, lines: list[Line], ends: dict[int, Line]) -> list[Line]:
    steps = []
    for line in lines:
        if line.get("connection") != stream:
            continue
        kind, event = line.get("packet_type"), line["event"]
        is_sent = event == "packet_sent" and (kind in NUMBERED or kind == 1)
        is_answer = event == "packet_received" and kind in (2, 3)
        if is_sent or is_answer or event in ("packets_acked", "connection_closed"):
            steps.append(line)
    # of the records with the same time, those of packets that were sent come last
    return sorted(steps, key=lambda line: (line["time_us"], line["event"] == "packet_sent", line.get("sequence", 0)))


def _is_main(streams: dict[int, dict[int, Packet]], stream: int) -> bool:
    def payload(packets: dict[int, Packet]) -> int:
        return sum(
            (p.sent or p.received)[0]["size_bytes"] - HEADER_BYTES
            for p in packets.values()
            if (p.sent or p.received) and (p.sent or p.received)[0]["packet_type"] == 4 and (p.received or p.proven)
        )

    return 10 * payload(streams[stream]) >= max(map(payload, streams.values()))


class _Sender:
    """What a sender did between its steps: it was stalled, or had a limit."""

    def __init__(self, trip_us: int | None, is_main: bool) -> None:
        self.stalls: list[tuple[int, int]] = []
        self.limits: list[tuple[int, int]] = []
        self.connecting: list[tuple[int, int]] = []
        self._trip_us = trip_us
        self._is_main = is_main

    def follow(self, steps: list[Line], until: dict[str, int], turns: list[tuple[int, int]]) -> None:
        """Follow the steps; add the times for which the sender was busy to `turns`."""
        state: Line = {}
        asked = False
        busy_from: int | None = None
        for before, step in pairwise([None, *steps]):
            assert step is not None
            busy = _is_busy(state) or asked
            if before is not None:
                span = before["time_us"], step["time_us"]
                is_stall = busy and _is_stall(span[1] - span[0], state, self._trip_us, asked=asked)
                if is_stall:
                    self.stalls.append(span)
                elif busy or (self._is_main and _wrote(step)):
                    self.limits.append(span)
                if asked:
                    self.connecting.append(span)
            event = step["event"]
            if event != "packet_received":
                state = step
            asked = (event == "packet_sent" and step["packet_type"] == 1) or (
                asked and event not in ("packet_received", "connection_closed")
            )
            now = _is_busy(state) or asked
            if now and busy_from is None:
                busy_from = step["time_us"]
            elif not now and busy_from is not None:
                turns.append((busy_from, step["time_us"]))
                busy_from = None
        if busy_from is None:
            return
        last = steps[-1]
        turns.append((busy_from, last["time_us"]))
        if until[last["writer"]] - last["time_us"] > max(last.get("rto_us", 0), 1_000_000):
            self.stalls.append((last["time_us"], until[last["writer"]]))


def _waits(lines: list[Line]) -> dict[int, list[tuple[int, int]]]:
    """Return the times in which bytes waited for the application, by the sender's stream."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for line in lines:
        if line["event"] == "stream_data_waited":
            found[line["peer"]].append((line["time_us"] - line["latency_us"], line["time_us"]))
    for stream, waits in found.items():
        joined: list[tuple[int, int]] = []
        for begin, end in sorted(waits):
            if joined and begin <= joined[-1][1]:
                joined[-1] = joined[-1][0], max(end, joined[-1][1])
            else:
                joined.append((begin, end))
        found[stream] = joined
    return dict(found)


def _is_busy(state: Line) -> bool:
    return bool(state.get("in_flight_bytes", 0) > 0 or state.get("backlog_bytes", 0) > 0)


def _wrote(step: Line) -> bool:
    return step["event"] == "packet_sent" and step["packet_type"] == 4 and not step.get("attempt", 0)


def _is_stall(gap: int, state: Line, trip_us: int | None, *, asked: bool) -> bool:
    smoothed = state.get("srtt_us", 0) or None
    known = [value for value in (smoothed, trip_us) if value is not None]
    trip = max(known) if known else None
    timeout = state.get("rto_us", 0) + (trip - smoothed if trip is not None and smoothed is not None else 0)
    limits = [value for value in (None if trip is None else 2 * trip + 25_000, timeout) if value is not None]
    return bool(gap > min(limits) and gap > 1_000)


def _union(turns: list[tuple[int, int]]) -> int:
    total, end = 0, -1
    for begin, stop in sorted(turns):
        total += max(0, stop - max(begin, end))
        end = max(end, stop)
    return total
