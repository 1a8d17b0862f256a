"""Formats the reports of running clients as text, one table for each. Uses no clock and no terminal."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from urllib.parse import urlsplit

from tunnel.ground.printable import printable
from tunnel_client.status import ClientReport, ConnectionReport, EntryReport, RelayLine, RoadLine

__all__ = ["Rates", "entry_lines", "render"]

_TITLES = (
    *("TARGET", "UP", "DOWN", "UP/s", "DOWN/s", "RTT", "RTO", "SENT", "RESENT", "QUEUED", "IN FLIGHT", "UNREAD"),
    *("ENCRYPTED", "RELAY"),
)
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
_NAME_WIDTH_MAX = 40
_WHY_WIDTH = 100
_MOVES_SHOWN = 3
_STAYS_SHOWN = 3


class Rates:
    """The bytes per second of each connection, between the last two snapshots."""

    def __init__(self) -> None:
        self._seen: dict[tuple[int, int], tuple[int, int]] = {}
        self._rates: dict[tuple[int, int], tuple[float, float]] = {}

    def note(self, reports: Iterable[ClientReport], seconds: float) -> None:
        """Add a snapshot, taken `seconds` after the one before."""
        now = {(r.pid, c.id): (c.bytes_up, c.bytes_down) for r in reports for c in r.connections}
        self._rates = {
            key: ((up - self._seen[key][0]) / seconds, (down - self._seen[key][1]) / seconds)
            for key, (up, down) in now.items()
            if key in self._seen and seconds > 0
        }
        self._seen = now

    def of(self, report: ClientReport, connection: ConnectionReport) -> tuple[float | None, float | None]:
        """Return the rates up and down, or None for each before the second snapshot of the connection."""
        return self._rates.get((report.pid, connection.id), (None, None))


def render(reports: Sequence[ClientReport], now_s: float, rates: Rates | None = None, *, rows_max: int = 1000) -> str:
    """Return the tables, each with the `rows_max` connections of its client that have carried the most bytes."""
    if not reports:
        return "no tunnel command of yours is running\n"
    return "\n".join("".join(f"{line.rstrip()}\n" for line in _client(r, now_s, rates, rows_max)) for r in reports)


def _client(report: ClientReport, now_s: float, rates: Rates | None, rows_max: int) -> Iterator[str]:
    state = "attached" if report.attached else "NOT ATTACHED"
    yield f"{printable(report.command)}  (process {report.pid}, for {_age(now_s - report.started_s)})"
    yield f"  {state}: {printable(report.carrier)}; batches on their way: {report.batches_unreceipted}"
    if report.roads:
        yield f"  roads: {', '.join(map(_road, report.roads))}"
    for relay in report.relays:
        yield from _relay(relay)
    yield from _moves(report, now_s)
    if report.trouble and not report.relays:
        yield f"  trouble: {printable(report.trouble)}"
    yield from entry_lines(report.entries)
    if not report.connections:
        yield "  no connections"
        return
    ranked = sorted(report.connections, key=lambda c: (-(c.bytes_up + c.bytes_down), c.id))
    shown = [_row(report, connection, rates) for connection in ranked[:rows_max]]
    titles = [title for title in _TITLES if rates is not None or not title.endswith("/s")]
    if not report.relays:
        titles.remove("RELAY")
    widths = [max(map(len, column)) for column in zip(titles, *shown, strict=True)]
    for row in (titles, *shown):
        first, *rest = row
        numbers = (text.rjust(width) for text, width in zip(rest, widths[1:], strict=True))
        yield f"  {first.ljust(widths[0])}  {'  '.join(numbers)}"
    if len(ranked) > len(shown):
        yield f"  and {len(ranked) - len(shown)} more"


def _relay(relay: RelayLine) -> Iterator[str]:
    """Say whether a relay answers, what it carries, what is wrong, and which services it does not take."""
    state = ("in use" if relay.is_used else "attached") if relay.attached else "NOT ATTACHED"
    state = "REFUSED" if relay.is_refused else state
    count = f"{relay.connections} connection{'s' * (relay.connections != 1)}"
    why = f"; {_short(relay.trouble)}" if relay.trouble else ""
    yield f"  relay {printable(relay.url)}: {state}, {printable(relay.carrier.partition(' ')[0])}, {count}{why}"
    for name, refusal in relay.services_refused.items():
        yield f"    does not take {printable(name)}: {printable(' '.join(refusal.removeprefix(f'{name}: ').split()))}"


def _moves(report: ClientReport, now_s: float) -> Iterator[str]:
    """Say which connections have moved from one relay to another, the latest first, and why others cannot."""
    if report.moves_count:
        yield f"  moves to another relay: {report.moves_count}"
    for move in report.moves[: -_MOVES_SHOWN - 1 : -1]:
        what = printable(move.target) or f"connection {move.connection}"
        where = f"{printable(move.before)} -> {printable(move.now)}"
        yield f"    {_age(now_s - move.at_s)} ago: {what}, {where}; {printable(move.why)}"
    stays = Counter((one.relay, one.stays) for one in report.connections if one.stays)
    for (relay, why), count in stays.most_common(_STAYS_SHOWN):
        what = f"{count} connection{'s' * (count != 1)} cannot leave {printable(relay)}"
        yield f"  {what}: {printable(' '.join(why.split()))}"


def _short(text: str) -> str:
    return printable(" ".join(text.split())[:_WHY_WIDTH])


def _road(road: RoadLine) -> str:
    """Say what a road does, and why it does not carry."""
    tries = f"{road.tries} {'try' if road.tries == 1 else 'tries'}"
    why = f"; {_short(road.why)}" if road.why else ""
    return f"{printable(road.name)} {road.state}" + (f" ({tries}{why})" if road.tries else "")


def entry_lines(entries: Sequence[EntryReport], *, has_failures: bool = True) -> Iterator[str]:
    """Return a line for each entry of a file.

    If `has_failures` is set, an entry that is served has a further line with the error of its latest connection that
    failed, if there is one.
    """
    names = [printable(entry.name) for entry in entries]
    leads = [printable(entry.leads) for entry in entries]
    name_width, lead_width = (max(map(len, column), default=0) for column in (names, leads))
    for entry, name, lead in zip(entries, names, leads, strict=True):
        yield f"  {name.ljust(name_width)}  {lead.ljust(lead_width)}  {_entry_state(entry)}"
        if has_failures and entry.state == "serving" and entry.error:
            yield f"    latest failure: {printable(entry.error)}"


def _entry_state(entry: EntryReport) -> str:
    if entry.state != "serving":
        return f"{entry.state.upper()}: {printable(entry.error)}" if entry.error else entry.state
    counts = f"{entry.connections_open} open, {entry.connections} in all, {entry.connections_failed} failed"
    return f"{counts}; up {_bytes(entry.bytes_up)}, down {_bytes(entry.bytes_down)}"


def _row(report: ClientReport, connection: ConnectionReport, rates: Rates | None) -> list[str]:
    name = printable(connection.target) or f"connection {connection.id}"
    if len(name) > _NAME_WIDTH_MAX:
        name = f"{name[: _NAME_WIDTH_MAX - 1]}~"
    speeds = [] if rates is None else [_bytes(rate) for rate in rates.of(report, connection)]
    return [
        name,
        _bytes(connection.bytes_up),
        _bytes(connection.bytes_down),
        *speeds,
        _time(connection.round_trip_us),
        _time(connection.rto_us),
        str(connection.packets_sent),
        str(connection.packets_resent),
        _bytes(connection.bytes_queued),
        str(connection.packets_in_flight),
        _bytes(connection.bytes_unread),
        printable(connection.encryption) or "no",
        *([printable(urlsplit(connection.relay).netloc or "-")] if report.relays else []),
    ]


def _bytes(count: float | None) -> str:
    if count is None:
        return "-"
    unit = 0
    while count >= 1024 and unit < len(_UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {_UNITS[unit]}" if unit == 0 or count >= 100 else f"{count:.1f} {_UNITS[unit]}"


def _time(microseconds: int) -> str:
    if not microseconds:
        return "-"
    if microseconds >= 1_000_000:
        return f"{microseconds / 1e6:.1f} s"
    return f"{microseconds / 1e3:.1f} ms" if microseconds >= 95 else f"{max(0.01, microseconds / 1e3):.2f} ms"


def _age(seconds: float) -> str:
    if seconds < 120:
        return f"{max(0, seconds):.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
