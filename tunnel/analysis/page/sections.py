"""The sections of the report, in order."""

from collections.abc import Callable, Mapping
from html import escape
from typing import Any

from tunnel.analysis.page.pieces import Column, Section, figure, meanings_of, pair, table
from tunnel.analysis.page.section import connections
from tunnel.analysis.page.stalls_section import limits, stalls
from tunnel.analysis.page.streams_section import worst_streams
from tunnel.analysis.page.svg import Axis, Series, bars, plot
from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.verdict import unknowns
from tunnel.analysis.words import CAUSES, MOVES, PROBLEMS, bits, count, duration, percent, size

__all__ = ["ALL", "MOST"]

MOST = 50
"""Rows of a table that grows with the machines of a cluster."""


def _health(of: Analysis) -> Section:
    files = table(
        "Files with problems.",
        [
            Column("file", lambda row: row["file"], is_number=False),
            Column("problem", lambda row: _problem(row), is_number=False),
        ],
        of.problems,
        MOST,
    )
    writers = table(
        "The writers of the trace.",
        [
            Column("writer", lambda row: row["writer"], "one process", is_number=False),
            Column("events", lambda row: count(row["events"]), "records that were read"),
            Column("dropped", lambda row: count(row["dropped"]), "records that the writer reports as dropped"),
            Column("missing", lambda row: count(row["missing"]), "record numbers not in the trace, including dropped"),
            Column(
                "clock", lambda row: _ahead(row), "how far it is ahead of the first writer's, and how that is known"
            ),
        ],
        of.writers,
        MOST,
    )
    sound = '<p class="good">Every file is whole.</p>' if not of.problems else ""
    what = "Whether the trace is complete. A record that is missing here was lost by the trace, not by the network."
    return Section("health", "The trace itself", what, sound + files + writers)


def _ahead(row: Mapping[str, Any]) -> str:
    if row["clock"] in ("reference", "nothing"):
        return {"reference": "–", "nothing": "unknown"}[row["clock"]]
    return f"{duration(row['ahead_us'])} ({row['clock']})"


def _problem(row: Mapping[str, Any]) -> str:
    text = PROBLEMS[row["problem"]]
    if row["problem"] == "duplicate":
        return f"{text} ({row['same_as']})"
    if row["problem"] == "corrupt":
        return f"{text}; {row['corrupt_frames']} of {row['frames'] + row['corrupt_frames']} parts are damaged"
    if row["problem"] in ("version", "lines"):
        version = f", version {row['version']}" if row.get("version") else ""
        return f"{text} ({count(row['count'])} lines{version})"
    return text


def _retransmissions(of: Analysis) -> Section | None:
    sums: dict[str, list[int]] = {}
    roads: dict[tuple[str, str], dict[str, int]] = {}
    buckets: dict[int, list[int]] = {}
    for row in of.retransmissions:
        road = roads.setdefault((row["relay"], row["carrier"]), {"packets": 0, "resent": 0, "bytes": 0, "resent_b": 0})
        over_time = buckets.setdefault(row["bucket"], [0, 0])
        road["packets"] += row["packets"]
        road["bytes"] += row["bytes"]
        over_time[0] += row["packets"]
        if row["cause"]:
            road["resent"] += row["packets"]
            road["resent_b"] += row["bytes"]
            over_time[1] += row["packets"]
            of_cause = sums.setdefault(row["cause"], [0, 0])
            of_cause[0] += row["packets"]
            of_cause[1] += row["bytes"]
    if not roads:
        return None
    marks = [
        (CAUSES.get(cause, (cause,))[0], float(packets), f"{count(packets)}, {size(size_bytes)}")
        for cause, (packets, size_bytes) in sorted(sums.items(), key=lambda item: -item[1][0])
    ]
    rate = [(bucket * of.bucket_us / 1e6, resent / sent) for bucket, (sent, resent) in sorted(buckets.items())]
    by_cause = figure(
        bars(marks, title="repeats by cause"), "Repeats by the cause that made the sender repeat: packets and bytes."
    )
    time = plot([Series("rate", rate, 2, steps=True)], Axis("seconds", _plain), Axis("repeats", _share))
    over = figure(time, f"Share of transmissions that were repeats, for each {duration(of.bucket_us)}.")
    ways = table(
        "By relay and carrier.",
        [
            Column("relay", lambda row: row["relay"] or "–", is_number=False),
            Column("carrier", lambda row: row["carrier"] or "–", "how batches were sent", is_number=False),
            Column("packets", lambda row: count(row["packets"]), "numbered packets sent, including repeats"),
            Column("repeats", lambda row: count(row["resent"])),
            Column("rate", lambda row: percent(row["resent"] / row["packets"], 2), "repeats as a share of packets"),
            Column("bytes repeated", lambda row: percent(row["resent_b"] / row["bytes"] if row["bytes"] else 0.0, 2)),
        ],
        sorted(
            ({"relay": relay, "carrier": carrier, **road} for (relay, carrier), road in roads.items()),
            key=lambda row: (-row["resent"], row["relay"], row["carrier"]),
        ),
        MOST,
    )
    meanings = meanings_of(CAUSES[cause] for cause in sums if cause in CAUSES)
    body = (pair(by_cause, over) if sums else "<p>No packet was repeated.</p>") + ways + meanings
    return Section("repeats", "Retransmissions", "How often packets were sent again, and why.", body)


def _share(value: float) -> str:
    return percent(value, 0)


def _plain(value: float) -> str:
    return f"{value:,.10g}"


def _needless(of: Analysis) -> Section | None:
    if not of.spurious:
        return None
    columns = [
        Column("cause", lambda row: CAUSES.get(row["cause"], (row["cause"],))[0], is_number=False),
        Column("packets", lambda row: count(row["packets"]), "packets sent more than once, with both ends traced"),
        Column("repeats", lambda row: count(row["attempts"])),
        Column("needless", lambda row: count(row["needless"]), "repeats although an earlier attempt arrived"),
        Column("share", lambda row: percent(row["rate"])),
        Column("precision", lambda row: percent(row["precision"]), "share of the sender's verdicts that were right"),
        Column("recall", lambda row: percent(row["recall"]), "share of the needless repeats that it recognised"),
    ]
    what = (
        "Repeats of packets of which an earlier attempt arrived. They cost bandwidth; "
        "the cause is a timer that was too short, or a late acknowledgement."
    )
    return Section("needless", "Needless retransmissions", what, table("By cause.", columns, of.spurious))


def _times(of: Analysis) -> Section | None:
    if not of.trip_values:
        return None
    trips, receipts, ratios = (
        _cumulated([(row["class"], row["n"]) for row in of.trip_values if row["of"] == kind])
        for kind in ("trip", "receipt", "rto_over_receipt")
    )
    share = Axis("share", _share)
    both = [
        Series("round trip", trips, 1, steps=True),
        Series("receipt to acknowledgement", receipts, 3, steps=True),
    ]
    cdf = plot(both, Axis("time", duration, logarithmic=True), share)
    ratio = plot(
        [Series("RTO over that time", ratios, 4, steps=True)],
        Axis("RTO over receipt to acknowledgement", _plain, logarithmic=True),
        share,
    )
    lines = [
        Series(
            name,
            [
                (row["bucket"] * of.bucket_us / 1e6, row[column])
                for row in of.trips_over_time
                if row[column] is not None
            ],
            tone,
            dashed=dashed,
        )
        for name, column, tone, dashed in (
            ("round trip, median", "trip_us_p50", 1, False),
            ("round trip, 99 %", "trip_us_p99", 2, False),
            ("receipt to acknowledgement, median", "receipt_us_p50", 3, False),
            ("RTO, median", "rto_us_p50", 6, True),
        )
    ]
    over = plot(lines, Axis("seconds", _plain), Axis("", duration, logarithmic=True))
    body = (
        pair(
            figure(
                cdf,
                "Share of times below each value. A round trip lasts from sending to acknowledgement. The transport "
                "itself measures from the receipt, since its timeout runs from there.",
            ),
            figure(
                ratio,
                "Timeout over the time from receipt to acknowledgement: near 1, repeats are needless; far above 1, "
                "losses are found late.",
            ),
        )
        + figure(over, f"Round trip and timeout, for each {duration(of.bucket_us)}.")
        + _timers(of)
    )
    return Section(
        "time", "Round trips and timers", "How long round trips and repairs took, and how long the sender waited.", body
    )


def _timers(of: Analysis) -> str:
    timers = table(
        "Timers.",
        [
            Column("timer", lambda row: row["timer"].replace("_", " "), is_number=False),
            Column("fired", lambda row: count(row["fired"])),
            Column("late, median", lambda row: duration(row["lag_us_p50"]), "time from its deadline until it fired"),
            Column("late, 99 %", lambda row: duration(row["lag_us_p99"])),
            Column("latest", lambda row: duration(row["lag_us_max"])),
        ],
        of.timers,
    )
    repaired = table(
        "Repair.",
        [
            Column("attempts", lambda row: f"{row['attempts']}{' or more' if row['attempts'] == 8 else ''}"),
            Column("packets", lambda row: count(row["packets"]), "packets sent more than once and then acknowledged"),
            Column("median", lambda row: duration(row["us_p50"]), "time from first attempt to acknowledgement"),
            Column("99 %", lambda row: duration(row["us_p99"])),
        ],
        of.recovery,
    )
    return pair(timers, repaired)


def _cumulated(classes: list[tuple[int, int]]) -> list[tuple[float, float]]:
    total = sum(n for _, n in classes) or 1
    points, so_far = [], 0
    for number, n in sorted(classes):
        so_far += n
        points.append((2 ** ((number + 1) / 8), so_far / total))
    return points


def _losses(of: Analysis) -> Section | None:
    if not of.totals or not of.totals.get("streams"):
        return None
    what = "Which packets were lost, where, and which packets had to wait for them."
    unknown = "".join(f"<p>{escape(text)}</p>" for text in unknowns(of.totals))
    if not of.totals["both_ends"]:
        return Section("loss", "Losses and order", what, unknown + _moved(of) + _faults(of))
    fit = of.gilbert
    longest = max((row["length"] for row in of.bursts), default=0)
    marks = [(f"{row['length']} in a row", float(row["bursts"]), count(row["bursts"])) for row in of.bursts[:12]]
    model = ""
    if fit.get("p") is not None and fit.get("r") is not None:
        model = (
            f"<p>Gilbert model of first attempts: a burst of losses begins with probability p = {fit['p']:.4f} and "
            f"ends with probability r = {fit['r']:.3f}. The mean burst has {fit['mean_burst']:.2f} packets, "
            f"the longest {count(longest)}. "
            f"The mean is {fit['burst_ratio']:.2f} times that of independent losses at the same rate.</p>"
        )
    stages = table(
        "Where first attempts were lost.",
        [
            Column("where", lambda row: row["stage"], is_number=False),
            Column("packets", lambda row: count(row["packets"])),
            Column("bytes", lambda row: size(row["bytes"])),
            Column("never arrived", lambda row: count(row["never_arrived"]), "packets that no later attempt brought"),
        ],
        of.loss_stages,
    )
    ranges = table(
        "Packets that never arrived.",
        [
            Column("stream", lambda row: f"{row['stream']:08x}", is_number=False),
            Column("from", lambda row: row["sender"] or "–", is_number=False),
            Column("numbers", lambda row: f"{row['first']} to {row['last']}"),
            Column("packets", lambda row: count(row["packets"])),
            Column("bytes", lambda row: size(row["bytes"])),
            Column("attempts", lambda row: count(row["attempts"]), "the most for any packet of the range"),
        ],
        of.lost_ranges,
        20,
    )
    picture = figure(bars(marks, tone=4, title="bursts"), "Number of bursts by length: losses in a row.")
    moved = _moved(of)
    late = of.totals["late_us_max"]
    order = (
        f"<p>{count(of.totals['reordered'])} packets were overtaken by later ones"
        f"{f', by {duration(late)} at most' if late else ''}. {count(of.totals['waited'])} packets waited at the "
        f"receiver for an earlier packet (in the worst stream, 99 % of the packets waited at most "
        f"{duration(of.totals['hol_us_p99_max'] or 0)}).</p>"
    )
    none = "" if of.totals["lost"] else "<p>No transmission was lost of which the trace tells.</p>"
    body = unknown + none + model + pair(picture, stages) + ranges + moved + order + _faults(of)
    return Section("loss", "Losses and order", what, body)


def _moved(of: Analysis) -> str:
    sums = {row["cause"]: row for row in of.moved}
    names = (
        ("application_to_transport", "written", "written by applications"),
        ("transport_to_network", "carried", "put into batches, including repeats"),
        ("network_to_transport", "received", "received in order at the other end"),
        ("transport_to_application", "delivered", "read by the application at the other end"),
    )
    rows = [{"stage": stage, "what": what, **sums[cause]} for cause, stage, what in names if cause in sums]
    columns = [
        Column("stage", lambda row: row["stage"], is_number=False),
        Column("bytes", lambda row: size(row["bytes"])),
        Column("meaning", lambda row: row["what"], is_number=False),
    ]
    return table("Bytes by stage, for connections that ended within the trace.", columns, rows)


def _faults(of: Analysis) -> str:
    columns = [
        Column("fault", lambda row: row["cause"].replace("_", " "), is_number=False),
        Column("times", lambda row: count(row["n"])),
        Column("bytes", lambda row: size(row["bytes"])),
    ]
    return table("Faults that a test injected on purpose.", columns, of.faults)


def _moves(of: Analysis) -> Section | None:
    """Return the moves of connections to other relays."""
    total = sum(of.moves_by_cause.values())
    if not total:
        return None
    columns = [
        Column("at", lambda row: duration(row["t"] - of.begin_us), "since the trace began"),
        Column("connection", lambda row: f"{row['id']:08x}", "this end's id of it", is_number=False),
        Column("end", lambda row: row["node"], "the node that has it now", is_number=False),
        Column("relays", lambda row: row["relays"], "the one before, and the one now", is_number=False),
        Column("why", lambda row: MOVES.get(row["why"], (row["why"],))[0], is_number=False),
    ]
    shown = "" if total <= len(of.moves) else f" The first {count(len(of.moves))} of {count(total)}."
    what = f"Connections that went on at another relay, as each end recorded it.{shown}"
    meanings = meanings_of(MOVES[why] for why in of.moves_by_cause if why in MOVES)
    return Section("moves", "Moves to other relays", what, table("Moves.", columns, of.moves) + meanings)


def _exchanges(of: Analysis) -> Section | None:
    if not of.exchanges and not of.batches:
        return None
    columns = [
        Column("exchange", lambda row: row["kind"], "attach, push (up) or pull (down)", is_number=False),
        Column("outcome", lambda row: row["event"].removeprefix("exchange_"), is_number=False),
        Column("status", lambda row: str(row["status"] or "–"), "the HTTP status"),
        Column("times", lambda row: count(row["n"])),
        Column("bytes", lambda row: size(row["bytes"])),
        Column("median", lambda row: duration(row["latency_us_p50"] or None), "time until the outcome"),
        Column("99 %", lambda row: duration(row["latency_us_p99"] or None)),
    ]
    batch = [
        Column("carrier", lambda row: row["carrier"] or "–", is_number=False),
        Column("outcome", lambda row: row["event"].removeprefix("batch_").replace("_", " "), is_number=False),
        Column("batches", lambda row: count(row["n"])),
        Column("median", lambda row: duration(row["latency_us_p50"]), "time from filling the batch to the outcome"),
        Column("99 %", lambda row: duration(row["latency_us_p99"])),
    ]
    body = table("Exchanges.", columns, of.exchanges) + table("Batches.", batch, of.batches)
    return Section(
        "exchanges",
        "Exchanges and batches",
        "The outcomes of HTTP exchanges and batches. The relay holds pulls, so they may take long.",
        body,
    )


def _goodput(of: Analysis) -> Section | None:
    if not any(row["sent_bytes"] for row in of.goodput):
        return None
    lines = [
        Series(
            name,
            [(row["bucket"] * of.bucket_us / 1e6, row[column] * 1e6 / of.bucket_us) for row in of.goodput],
            tone,
            steps=True,
        )
        for name, column, tone in (
            ("sent", "sent_bytes", 6),
            ("first attempts", "first_bytes", 1),
            ("received", "received_bytes", 3),
        )
    ]
    picture = plot(lines, Axis("seconds", _plain), Axis("", bits))
    caption = (
        f"Rates of numbered packets, for each {duration(of.bucket_us)}: all sent, first attempts only, all received."
    )
    return Section("goodput", "Throughput", "How much data was sent and received, and when.", figure(picture, caption))


ALL: tuple[Callable[[Analysis], Section | None], ...] = (
    _goodput,
    limits,
    stalls,
    _retransmissions,
    _needless,
    _losses,
    _times,
    worst_streams,
    connections,
    _moves,
    _exchanges,
    _health,
)
