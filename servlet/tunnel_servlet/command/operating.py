"""The commands `tunnel-relay ps` and `kick`: who is connected to what, and how to end it."""

import argparse
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias
from urllib.parse import urlencode

from tunnel.ground.exit_codes import DENIED, LOST, OK
from tunnel.ground.printable import counted, printable
from tunnel.process.command_line import show, show_json, tell
from tunnel_servlet.command.admin_listener import admin_of, ask, ask_any, read_answer
from tunnel_servlet.config import ConfigError
from tunnel_servlet.switch.operating.rows import AttachmentRow, ConnectionRow, ServiceRow, UserRow
from tunnel_servlet.web.live.api import Kicked
from tunnel_servlet.web.live.denials import Denial
from tunnel_servlet.web.live.tables import ROWS_MAX, Page

__all__ = ["TABLES", "kick", "ps"]

_Columns: TypeAlias = Mapping[str, Callable[[Any], str]]  # by their heads: what a row shows there
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")
_STEP = 1024


def ps(arguments: argparse.Namespace) -> int:
    """Print a table of a running relay."""
    address, secret = admin_of(arguments)
    query: dict[str, str | int] = {"limit": arguments.limit}
    for name in ("user", "find", "sort"):
        if getattr(arguments, name):
            query[name] = getattr(arguments, name)
    if arguments.reverse:
        query["reverse"] = 1
    body = ask(address, secret, "GET", f"/{arguments.table}?{urlencode(query)}")
    if arguments.json:
        show_json(read_answer(address, body, dict))
        return OK
    kind, columns = TABLES[arguments.table]
    page = read_answer(address, body, kind)
    lines = [[printable(cell(row)) for cell in columns.values()] for row in page.rows]
    for line in _aligned([[*columns], *lines]) if lines else ():
        show(line)
    tell(_summary(arguments.table, page, arguments))
    return OK


def kick(arguments: argparse.Namespace) -> int:
    """End what the arguments name. Return OK, or LOST if there is no such thing any more."""
    named = [(kind, name) for kind in ("id", "attachment", "user") if (name := getattr(arguments, kind))]
    if len(named) != 1:
        raise ConfigError("name one thing to end: the id of a connection, --attachment ID or --user NAME")
    ((kind, name),) = named
    address, secret = admin_of(arguments)
    table, key = {"id": ("connections", "id"), "attachment": ("attachments", "id"), "user": ("users", "name")}[kind]
    status, body = ask_any(address, secret, "DELETE", f"/{table}?{urlencode({key: name})}")
    text = body[:1000].decode(errors="replace").strip()
    if status in (404, 409):
        tell(text)
        return LOST if status == 404 else DENIED
    if status != 200:
        raise ConfigError(text if status == 400 else f"{address} answered {status}: {text}")
    kicked = read_answer(address, body, Kicked)
    if arguments.json:
        show_json(kicked)
    else:
        show(_kicked_text(kind, name, kicked))
    return OK


def _kicked_text(kind: str, name: str, kicked: Kicked) -> str:
    if kind == "id":
        return f"ended connection {name}, which {kicked.user} had opened to {kicked.name}: both ends got a reset"
    connections = counted(kicked.connections, "connection")
    if kind == "attachment":
        endpoint = f"endpoint {kicked.name} of {kicked.user}" if kicked.name else f"endpoint of {kicked.user}"
        return f"ended attachment {name} and its {connections}: the {endpoint} may attach again"
    return (
        f"ended {counted(kicked.attachments, 'attachment')} and {connections} of {name}, whose endpoints may attach "
        f"again: `tunnel-relay user revoke {name}` keeps them out"
    )


def _summary(table: str, page: Page[Any], arguments: argparse.Namespace) -> str:
    """Say how much of the table was printed."""
    shown, noun = len(page.rows), table.removesuffix("s")
    if not page.total:
        return f"there are no {table}"
    if not page.matched:
        return f"none of {counted(page.total, noun)} matches"
    more = "" if shown == page.matched else f": --limit {min(page.matched, ROWS_MAX)} shows more"
    of = f" of {page.matched} that match" if page.matched != shown else ""
    rest = f", of {page.total} in all" if page.matched != page.total else ""
    return f"{counted(shown, noun)}{of}{rest}{more}"


def _aligned(lines: list[list[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        yield "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip()


def _size(count: int) -> str:
    value, unit = float(count), 0
    while value >= 1000 and unit < len(_UNITS) - 1:
        value, unit = value / _STEP, unit + 1
    return f"{count} B" if not unit else f"{value:.3g} {_UNITS[unit]}"


def _age(seconds: int) -> str:
    minutes, hours, days = seconds // 60, seconds // 3600, seconds // 86400
    if minutes < 1:
        return f"{seconds}s"
    if hours < 1:
        return f"{minutes}m{seconds % 60:02}s"
    return f"{hours}h{minutes % 60:02}m" if days < 1 else f"{days}d{hours % 24:02}h"


def _from(row: ConnectionRow) -> str:
    return "a stranger" if row.owner else row.endpoint or row.attachment


def _by(row: ConnectionRow) -> str:
    if not row.acceptor_attachment:
        return "-"
    name = row.acceptor_endpoint or row.acceptor_attachment
    return f"{name} of {row.acceptor_user}"


_CONNECTIONS: _Columns = {
    "ID": lambda row: row.id,
    "USER": lambda row: row.user,
    "FROM": _from,
    "TARGET": lambda row: row.target,
    "STATE": lambda row: row.state,
    "BY": _by,
    "AGE": lambda row: _age(row.age_s),
    "UP": lambda row: _size(row.bytes_up),
    "DOWN": lambda row: _size(row.bytes_down),
    "WAITING": lambda row: _size(row.waiting_up + row.waiting_down),
}
_ATTACHMENTS: _Columns = {
    "ID": lambda row: row.id,
    "USER": lambda row: row.user,
    "NAME": lambda row: row.name or "-",
    "ROLE": lambda row: row.role,
    "SOURCE": lambda row: row.source or "-",
    "CARRIER": lambda row: row.carrier,
    "AGE": lambda row: _age(row.age_s),
    "SILENT": lambda row: _age(row.silent_s),
    "CONNECTIONS": lambda row: str(row.connections),
    "WAITING": lambda row: f"{_size(row.waiting_bytes)} of {_size(row.waiting_bytes_max)}",
}
_USERS: _Columns = {
    "USER": lambda row: row.user,
    "ATTACHMENTS": lambda row: f"{row.attachments} of {row.attachments_max}",
    "CONNECTIONS": lambda row: f"{row.connections} of {row.connections_max}",
    "HELD": lambda row: f"{_size(row.held_bytes)} of {_size(row.held_bytes_max)}",
    "RECEIVED": lambda row: _size(row.traffic.bytes_received),
    "SENT": lambda row: _size(row.traffic.bytes_sent),
}
_SERVICES: _Columns = {
    "NAME": lambda row: row.name,
    "USER": lambda row: row.user,
    "ENDPOINT": lambda row: row.endpoint or row.attachment,
    "UNANSWERED": lambda row: f"{row.pending} of {row.backlog}",
    "PUBLIC": lambda row: row.public or "-",
}
_DENIALS: _Columns = {
    "USER": lambda row: row.user,
    "WANTED": lambda row: row.what,
    "TIMES": lambda row: str(row.count),
    "AGO": lambda row: _age(row.age_s),
    "WHY": lambda row: row.text,
}
TABLES: Mapping[str, tuple[type[Page[Any]], _Columns]] = {
    "connections": (Page[ConnectionRow], _CONNECTIONS),
    "attachments": (Page[AttachmentRow], _ATTACHMENTS),
    "users": (Page[UserRow], _USERS),
    "services": (Page[ServiceRow], _SERVICES),
    "denials": (Page[Denial], _DENIALS),
}
"""What `ps` can print, by name: the kind of the answer, and the columns."""
