"""The verdict: a few sentences that say what limited goodput, and what the main causes were."""

from collections import Counter
from typing import Any

from tunnel.analysis.results.result import Analysis
from tunnel.analysis.verdicts.blame import (
    Blame,
    blames,
    failing_relay,
    life_us,
    main_place,
    mean_body_bytes,
    trouble_of,
)
from tunnel.analysis.verdicts.families import FAMILIES
from tunnel.analysis.words import CAUSES, bits, count, duration, percent, process_of, size

__all__ = ["unknowns", "verdict"]

_SHARE_OF_NOTE = 0.05  # share of the senders' time
_RATE_OF_NOTE = 0.001  # share of the transmissions; a smaller share of repeats is not reported
_LISTED = 3  # processes that died
_NO_PACKETS = "The trace has no packets: record with --trace-level packet, or for longer."
_ADVICE = {
    0: "Requests had no answer: look at whether the relay ran, and at what drops requests or answers on the way to it; "
    "tunnel doctor names the hop",
    407: "Status 407: the proxy wants credentials (--proxy @FILE)",
    413: "Status 413: a proxy or the relay refuses large bodies, so each request carried little: raise that limit "
    "(nginx: client_max_body_size)",
    429: "Status 429: a proxy limits the rate of requests: raise that limit, or use a link instead of poll",
    500: "Status 500: look at the log of the proxy or relay that answers so",
    502: "Status 502: a proxy did not reach the next hop: look at its log, and at whether the relay ran",
    503: "Status 503: a proxy or the relay was overloaded or shutting down: look at its log",
    504: "Status 504: a proxy did not wait for the answer: raise its read timeout (nginx: proxy_read_timeout)",
}


def verdict(of: Analysis) -> list[str]:
    """Return sentences for the reader of the report, the most important first."""
    if not of.totals.get("streams"):
        return [*_failures(of, is_main=False), _NO_PACKETS, *_trace(of)]
    found = blames(of) if of.totals["packets"] else []
    is_http = bool(found) and found[0].family in ("http", "bodies")
    return [_limit(of, found), *_failures(of, is_main=is_http), *_loss(of), *_repeats(of), *_trace(of)]


def _limit(of: Analysis, found: list[Blame]) -> str:
    """Return the main cause, the share of the senders' time that it took, and the place to look at."""
    if not of.totals["packets"]:
        return "The senders of the streams were not traced, so the trace does not tell what limited goodput."
    if not found:
        return "The trace is too short to tell what limited goodput: record for longer."
    first, whole_us = found[0], life_us(of)
    family = FAMILIES[first.family]
    stalled = f" ({duration(first.stalled_us)} of it in stalls)" if first.stalled_us else ""
    text = (
        f"The main limit of goodput was: {family.title} ({family.meaning}). It took {duration(first.us)}{stalled}: "
        f"{percent(first.us / whole_us, 0)} of the {duration(whole_us)} for which streams lived, of which "
        f"{percent(sum(one.us for one in found) / whole_us, 0)} are explained.{_place(of, first.family)}"
    )
    if len(found) > 1 and found[1].us >= _SHARE_OF_NOTE * whole_us:
        second = found[1]
        text += f" The second was: {FAMILIES[second.family].title}, {percent(second.us / whole_us, 0)}."
    return f"{text} {_advice(of, first.family)}."


def _place(of: Analysis, family: str) -> str:
    """Return a sentence that names the node or relay at which a family took most of its time; empty if unknown."""
    worst = failing_relay(of) if family == "http" else None
    if worst is not None:
        name, (failed, requests), (failed_elsewhere, requests_elsewhere) = worst
        return (
            f" At the relay {name}, {count(failed)} of {count(requests)} requests failed; at all others, "
            f"{count(failed_elsewhere)} of {count(requests_elsewhere)}."
        )
    place = main_place(of, family)
    if place is None:
        return ""
    whose = {"sender": "the sender", "receiver": "the receiver", "relay": "the relay"}[place.side]
    if place.places == 1:
        return f" It concerned {whose} {place.name}."
    others = f"{count(place.places - 1)} other{'s' if place.places > 2 else ''}"
    return f" {percent(place.share, 0)} of it concerned {whose} {place.name}, the rest concerned {others}."


def _advice(of: Analysis, family: str) -> str:
    """Return the setting or the place to look at. For exchanges it depends on how they failed."""
    if family == "http":
        statuses = trouble_of(of).statuses
        for status in sorted(statuses, key=lambda status: (-statuses[status], status)):
            if status in _ADVICE:
                return _ADVICE[status]
    if family == "bodies":
        return f"{_bodies(of)}. {FAMILIES[family].advice}"
    if family == "loss" and of.loss_stages:
        return f"Most packets were lost here: {of.loss_stages[0]['stage']}. {FAMILIES[family].advice}"
    return FAMILIES[family].advice


def _bodies(of: Analysis) -> str:
    """Return how little a request carried, how long it took, and the rate that follows."""
    body, trip_us = mean_body_bytes(of) or 0.0, of.trips["us"][0]
    text = (
        f"A request carried {size(body)} on average, and a round trip took {duration(trip_us)}: one request after the "
        f"other carries {bits(body * 1e6 / trip_us)}"
    )
    refused = trouble_of(of).statuses.get(413)
    return text if not refused else f"{text}. {_ADVICE[413]}"


def _failures(of: Analysis, *, is_main: bool) -> list[str]:
    """Return the failures on the HTTP path, if they are the main cause of lost time or may have limited goodput."""
    trouble = trouble_of(of)
    if not trouble.failed and not trouble.absences:
        return []
    if not is_main and not trouble.is_of_note:
        return []
    text = ""
    if trouble.failed:
        how = [
            f"{'no answer' if not status else f'status {status}'}: {count(n)}"
            for status, n in sorted(trouble.statuses.items(), key=lambda item: (-item[1], item[0]))
        ]
        statuses = ", ".join(how[:4])
        if trouble.share is None:
            text = f"{count(trouble.failed)} requests failed ({statuses}); the trace does not tell how many succeeded."
        else:
            of_all = f"{count(trouble.failed)} of {count(trouble.requests)} requests failed"
            text = f"{of_all} ({percent(trouble.share)}; {statuses})."
    if trouble.absences:
        times = "once" if trouble.absences == 1 else f"{count(trouble.absences)} times"
        text += f" Endpoints lost their relay, or could not reach it: {times}."
    return [text.strip() if is_main else f"{text.strip()} {_advice(of, 'http')}."]


def unknowns(totals: dict[str, Any]) -> list[str]:
    """Return sentences that say for which packets the trace cannot tell whether they arrived."""
    both, streams = totals["both_ends"], totals["streams"]
    sentences = []
    if not both:
        sentences.append(
            "No stream was traced at both ends, so the trace does not tell which transmissions were lost, and which "
            "repeats were needless. To know that, trace both ends."
        )
    elif both < streams:
        sentences.append(
            f"Only {count(both)} of {count(streams)} streams were traced at both ends. Losses of the other streams "
            "are unknown, and are not counted."
        )
    if totals["in_doubt"]:
        sentences.append(
            f"Packets of which it is unknown whether they were lost, because records of their receiver are missing: "
            f"{count(totals['in_doubt'])}."
        )
    return sentences


def _loss(of: Analysis) -> list[str]:
    totals, fit = of.totals, of.gilbert
    unknown = unknowns(totals)
    if not totals["judged"]:
        return unknown
    if not totals["lost"]:
        return ["No transmission was lost." if not unknown else "No loss is known.", *unknown]
    rate = totals["lost"] / totals["judged"]
    text = f"{count(totals['lost'])} of {count(totals['judged'])} transmissions were lost ({percent(rate, 2)})"
    if fit.get("mean_burst"):
        # Independent losses have a burst ratio of 1; below 1.5 the difference may be chance.
        kind = "in bursts" if fit["burst_ratio"] and fit["burst_ratio"] > 1.5 else "one by one"
        text += f", {kind}: {fit['mean_burst']:.2g} packets at a time on average"
    if of.loss_stages:
        text += f". Most were lost here: {of.loss_stages[0]['stage']}"
    never = totals["never_arrived"]
    if never:
        text += f". Packets that never arrived, not even by a later attempt: {count(never)}."
    elif unknown or totals["open_packets"]:
        text += ". As far as the trace shows, every lost packet arrived by another attempt."
    else:
        text += ". Every lost packet arrived by another attempt."
    return [text, *unknown]


def _repeats(of: Analysis) -> list[str]:
    totals = of.totals
    resent = totals["packets"] - totals["unique_packets"]
    if resent <= _RATE_OF_NOTE * totals["packets"]:
        return []
    causes: Counter[str] = Counter()
    for row in of.retransmissions:
        if row["cause"]:
            causes[row["cause"]] += row["packets"]
    text = f"{percent(resent / totals['packets'])} of all transmissions were repeats, {size(totals['resent_bytes'])}"
    if causes:
        top = max(causes, key=lambda cause: (causes[cause], cause))
        text += f"; the most frequent cause was: {CAUSES.get(top, (top,))[0]}"
    if totals["needless"]:
        were = "was" if totals["needless"] == 1 else "were"
        text += f". {count(totals['needless'])} of the repeats {were} needless: an earlier attempt arrived"
    return [text + "."]


def _death(of: Analysis, row: dict[str, Any]) -> str:
    after = duration(row["end_us"] - of.begin_us)
    return (
        f"The process {process_of(row['writer'])} died without closing its trace. Its last record is from {after} "
        "after the trace began; what it did in its last quarter of a second may be missing."
    )


def _trace(of: Analysis) -> list[str]:
    missing = sum(row["missing"] for row in of.writers)
    sentences = [_death(of, row) for row in of.deaths[:_LISTED]]
    if len(of.deaths) > _LISTED:
        sentences.append(f"{count(len(of.deaths) - _LISTED)} more processes died without closing their traces.")
    if missing:
        sentences.append(
            f"Records missing from the trace itself: {count(missing)}. What happened meanwhile is unknown, and is "
            "counted neither as a loss nor as a stall."
        )
    problems = [row for row in of.problems if row["problem"] != "died"]
    if problems:
        names = sorted({row["file"] for row in problems})
        which = ", ".join(names[:3]) + (" and others" if len(names) > 3 else "")
        sentences.append(f"Files with problems: {count(len(names))} ({which}). See 'The trace itself' in the report.")
    return sentences
