"""The command `tunnel-relay audit`, which reads the audit of a relay."""

import argparse
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from tunnel.ground.exit_codes import OK
from tunnel.ground.printable import printable
from tunnel.process.command_line import show, show_json, tell
from tunnel_servlet.audit.event import AuditEvent, Kind
from tunnel_servlet.audit.reading import REFUSALS, Events, Query, Totals, totals_of, when
from tunnel_servlet.command.files import config_file, load_config
from tunnel_servlet.config import ConfigError

__all__ = ["read_audit"]

_SHOWN_MAX = 20  # rules and refused targets, in sums for people
_DETAILS = {
    "rule": "rule {}",
    "address": "at {}",
    "acceptor": "by {}",
    "reason": "{}",
    "source": "from {}",
    "forwarded": "for {}",
    "token": "token {}",
    "result": "{}",
    "sent_bytes": "{} bytes sent",
    "received_bytes": "{} received",
    "seconds": "{} s",
    "counts": "{}",
    "added": "added {}",
    "removed": "removed {}",
    "text": "{}",
}


def read_audit(arguments: argparse.Namespace) -> int:
    """Print the events that the arguments ask for, the oldest first, or sums over them."""
    events = Events(_path(arguments), _query(arguments))
    try:
        if arguments.totals:
            _show_totals(totals_of(events), is_json=arguments.json)
        else:
            for event in events:
                show_json(msgspec.to_builtins(event)) if arguments.json else show(_line(event))
    except OSError as error:
        raise ConfigError(
            f"{error.filename}: {error.strerror}: run this command as the user who runs the relay, or name a file "
            "with --file"
        ) from None
    if events.unreadable:
        tell(f"note: {events.unreadable} line(s) are no events: cut off when a relay was killed, or damaged")
    if events.missing:
        tell(f"note: {events.missing} event(s) are missing: they were lost (see --event events_lost), or removed")
    return OK


def _path(arguments: argparse.Namespace) -> Path:
    if arguments.file:
        return _existing(Path(arguments.file))
    file = config_file(arguments)
    audit = load_config(file).audit if file else None
    if audit is None:
        where = f"{file} has no table [audit]" if file else "there is no relay.toml here"
        raise ConfigError(f"{where}: name the relay's configuration with -c, or a file of its audit with --file")
    if audit.to != "file":
        raise ConfigError(f"{file}: the audit goes to {audit.to}: read it there")
    return _existing(Path(audit.file))


def _existing(path: Path) -> Path:
    if not path.parent.is_dir() or not list(path.parent.glob(f"{path.name}*")):
        raise ConfigError(f"{path}: no such file: has the relay run since it has the table [audit]?")
    return path


def _query(arguments: argparse.Namespace) -> Query:
    now = datetime.now(UTC)
    try:
        since, until = (when(text, now) if text else "" for text in (arguments.since, arguments.until))
        kinds = frozenset(map(Kind, arguments.event)) or (REFUSALS if arguments.refused else frozenset())
    except ValueError as error:
        raise ConfigError(str(error)) from None
    return Query(arguments.user, since, until, kinds, arguments.target)


def _line(event: AuditEvent) -> str:
    """Return an event as one line for people: when, what, who, whereto, and the rest."""
    values = msgspec.to_builtins(event)
    details = [form.format(_value(values[name])) for name, form in _DETAILS.items() if name in values]
    what = event.event.value + (" (resumed)" if event.resumed else "") + (" (question)" if event.question else "")
    place = event.target or event.service or event.act or event.file or event.endpoint
    columns = (event.time, what, event.user or "-", place or "-", ", ".join(details))
    return "\t".join(printable(column) for column in columns)


def _value(value: object) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name}: {count}" for name, count in value.items())
    return "; ".join(value) if isinstance(value, list) else str(value)


def _show_totals(totals: Totals, *, is_json: bool) -> None:
    if is_json:
        show_json(msgspec.to_builtins(totals), is_indented=True)
        return
    show("user\tconnections\trefused\tsent bytes\treceived bytes\thours")
    for one in totals.users:
        name, hours = printable(one.user or "(nobody)"), f"{one.seconds / 3600:.1f}"
        show(f"{name}\t{one.connections}\t{one.refused}\t{one.sent_bytes}\t{one.received_bytes}\t{hours}")
    for title, counts in (("allowed by rule", totals.rules), ("refused", totals.refused)):
        show(f"\n{title}")
        for name, count in counts[:_SHOWN_MAX]:
            show(f"{count}\t{printable(name)}")
        if len(counts) > _SHOWN_MAX:
            show(f"and {len(counts) - _SHOWN_MAX} more: --json shows all")
