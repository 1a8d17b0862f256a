"""The dialer: connects an exit's connections to their targets, in the relay's process or in `tunnel-relay exit`.

The dialer makes the final check: it resolves a name once, checks each address against the user's rules, and dials an
allowed address, not the name. The hosts and ports in an SRV record are checked as if the user had asked for them. A
Unix socket needs a rule with its path. The exit sends ACCEPTED only after the target has accepted.
"""

import asyncio
import socket
from collections.abc import Callable, Coroutine, Iterator
from functools import partial
from ipaddress import ip_address
from typing import Any, TypeVar

import msgspec
import structlog

from tunnel import ExitRequest, RejectReason
from tunnel.ground.special_targets import SRV_PREFIX, UNIX_PREFIX, target_text
from tunnel.metrics.metric import Sample
from tunnel.streams.datagram_sockets import open_datagrams
from tunnel.streams.datagrams import UDP_PREFIX
from tunnel.streams.splice import Side, SocketSide, TunnelSide, splice
from tunnel.streams.target_side import LargeBuffers, TargetSide
from tunnel.turns.rounds import RoundTurns
from tunnel_servlet.access.addresses import IPAddress, embedded_addresses
from tunnel_servlet.access.grants import is_of_provider, user_table
from tunnel_servlet.access.rules import Ruleset, read_host
from tunnel_servlet.exit.dial_counts import DialCounts
from tunnel_servlet.exit.lookups import Lookups
from tunnel_servlet.exit.resolver import FindRecords, Resolve, find_records, resolve

__all__ = ["DialWitness", "Dialer"]

_T = TypeVar("_T")
_log = structlog.get_logger("exit")
_CHANGED = "the rules of the exit were changed"
_DIALS_PER_ROUND = 4  # of the event loop; a dial takes about 0.5 ms of the processor, so other work waits for 2 ms


class _Place(msgspec.Struct, frozen=True):
    """An address that the rules allow. `host` is what the user asked for, or what the SRV record named."""

    host: str
    port: int
    address: IPAddress


class _Dialled(msgspec.Struct, frozen=True):
    """A connection to a target: its user, the host and port that the user asked for, and the place to which the
    connection leads (None for a Unix socket)."""

    user: str
    host: str
    port: int
    place: _Place | None


class _Refused(Exception):
    def __init__(self, reason: RejectReason, text: str) -> None:
        super().__init__(text)
        self.reason = reason
        self.text = text


class DialWitness:
    """Hears what an exit dials, and what it refuses. This base class hears nothing."""

    def why_closed(self, user: str) -> str:
        """Return why nothing may be dialled for the user now, or an empty string."""
        return ""

    def on_dialled(self, request: ExitRequest, address: str, rule: str) -> None:
        """A target has accepted, at this address. `rule` allows it. The answer to the request has not left yet."""

    def on_refused(self, request: ExitRequest, reason: RejectReason, text: str) -> None:
        """The request is refused."""


class Dialer:
    """An exit handler for `tunnel.attach`. `rules_of(user)` returns the rules of the user whom the relay named in
    CONNECT.

    Users take turns with dials, a few of which begin in one round of the event loop. One user may not have more
    connections than are still free: one user alone gets half of `connections_max`.
    """

    def __init__(
        self,
        rules_of: Callable[[str], Ruleset],
        *,
        dial_seconds: float = 10.0,
        connections_max: int = 4096,
        resolve: Resolve = resolve,
        find_records: FindRecords = find_records,
        witness: DialWitness | None = None,
    ) -> None:
        self.connections = 0  # being dialled, or open
        self._counts = DialCounts()
        self._open: dict[TunnelSide, _Dialled] = {}  # by the tunnel's side of each open connection
        self._rules_of = rules_of
        self._dial_seconds = dial_seconds
        self._connections_max = connections_max
        self._resolve = resolve
        self._find_records = find_records
        self._of_user: dict[str, int] = {}  # connections of each user
        self._lookups = Lookups()
        self._turns = RoundTurns(_DIALS_PER_ROUND)
        self._buffers = LargeBuffers()
        self._witness = witness or DialWitness()

    async def __call__(self, request: ExitRequest) -> None:
        """Dial the target and join it to the connection, or refuse the connection with the reason."""
        user = request.user
        held = self._of_user.get(user, 0)
        free = self._connections_max - self.connections
        if free < 1 or held >= max(1, free):
            self._refuse(request, _Refused(RejectReason.BUSY, "the exit has no room for another connection"))
            return
        self.connections += 1
        self._of_user[user] = held + 1
        joined = False
        clock = asyncio.get_running_loop().time
        began_s = clock()
        try:
            await self._turns.wait(user)
            if why := self._witness.why_closed(user):
                raise _Refused(RejectReason.BUSY, why)
            target, dialled = await self._dial(request)
            try:
                self._join(request, target, dialled)
            except BaseException:
                target.abort()  # nothing else uses it
                raise
            joined = True
            self._counts.note_dial(None, clock() - began_s)
        except _Refused as refused:
            _log.info("refused", **_who(request), reason=refused.reason.name, text=refused.text)
            self._refuse(request, refused, clock() - began_s)
        finally:
            if not joined:
                self._ended(user)

    def _refuse(self, request: ExitRequest, refused: _Refused, lasted_s: float | None = None) -> None:
        self._counts.note_dial(refused.reason, lasted_s)
        self._witness.on_refused(request, refused.reason, refused.text)
        request.refuse(refused.reason, refused.text)

    def samples(self) -> Iterator[Sample]:
        """Yield the samples of this exit for its metrics."""
        return self._counts.samples(self.connections)

    def abort(self) -> None:
        """End all connections with an error on both sides, because a cut must not look like a clean end of stream."""
        self._lookups.abort()
        for side in list(self._open):
            side.abort_both()

    def recheck(self) -> Iterator[None]:
        """End, in small steps, the connections that the changed rules no longer allow."""
        ended: dict[str, list[str]] = {}  # by user: the reason for each connection that was ended
        for side, dialled in list(self._open.items()):
            why = self._why_denied(dialled)
            if why:
                ended.setdefault(dialled.user, []).append(why)
                side.deny(_CHANGED)
            yield
        for user, reasons in ended.items():
            _log.info("ended", user=user, connections=len(reasons), text=reasons[0])

    def _why_denied(self, dialled: _Dialled) -> str:
        """Return why the rules do not allow this connection, or an empty string."""
        host, port, place = dialled.host, dialled.port, dialled.place
        rules = self._rules_of(dialled.user)
        ruling = rules.check_target(host, port)
        if ruling.allowed and place is not None:
            if host.startswith(UDP_PREFIX):
                host, rules = host.removeprefix(UDP_PREFIX), rules.datagrams
            if host.startswith(SRV_PREFIX):
                ruling = rules.check_found(place.host, place.address, place.port)
            else:
                name = read_host(host)
                ruling = rules.check_address(place.address, port, name if isinstance(name, str) else "")
        return "" if ruling.allowed else ruling.text

    def _join(self, request: ExitRequest, target: Side, dialled: _Dialled) -> None:
        rule = self._rules_of(dialled.user).check_target(dialled.host, dialled.port).rule
        self._witness.on_dialled(request, _address(dialled), rule)
        if self._why_denied(dialled):  # the rules have changed since it was dialled
            raise _Refused(RejectReason.DENIED, _CHANGED)
        side = TunnelSide(ended=lambda _, error: self._ended(request.user, side))
        request.accept(lambda: side)
        self._open[side] = dialled
        splice(target, side)

    def _ended(self, user: str, side: TunnelSide | None = None) -> None:
        self.connections -= 1
        self._of_user[user] -= 1
        if not self._of_user[user]:
            del self._of_user[user]
        if side is not None:
            self._open.pop(side, None)

    # --- dialling

    async def _dial(self, request: ExitRequest) -> tuple[Side, _Dialled]:
        """Return a connection to the target, from which nothing is read yet, and the record of where it leads.

        Raise _Refused if the target is denied, does not resolve or does not accept.
        """
        host, port = request.target.host, request.target.port
        rules = self._rules_of(request.user)
        ruling = rules.check_target(host, port)
        if not ruling.allowed:
            raise _Refused(RejectReason.DENIED, _denied(request.user, ruling.text, rules.missing_rule(host, port)))
        if host.startswith(UDP_PREFIX):
            host, rules = host.removeprefix(UDP_PREFIX), rules.datagrams
        try:
            async with asyncio.timeout(self._dial_seconds):
                if host.startswith(UNIX_PREFIX):
                    return await self._connect_unix(request)
                if host.startswith(SRV_PREFIX):
                    places = await self._recorded(request.user, host.removeprefix(SRV_PREFIX), rules)
                else:
                    addresses = await self._addresses(request.user, host, port, rules)
                    places = [_Place(host, port, address) for address in addresses]
                return await self._connect(request, places)
        except TimeoutError:
            text = f"{_label(request)} did not answer within {self._dial_seconds} s"
            raise _Refused(RejectReason.TIMED_OUT, text) from None

    async def _recorded(self, user: str, record: str, rules: Ruleset) -> list[_Place]:
        """Return the places that the SRV record names and the rules allow, in the order of the record.

        Raise _Refused if there is none.
        """
        try:
            found = await self._look_up(user, lambda: self._find_records(record))
        except OSError as error:
            # The error names the name servers, whose addresses users must not learn.
            _log.warning("no_records", user=user, target=record, text=str(error))
            text = f"{record}: the name servers did not answer; the log of the exit says which"
            raise _Refused(RejectReason.NAME_NOT_RESOLVED, text) from None
        if not found:
            raise _Refused(RejectReason.NAME_NOT_RESOLVED, f"{record} has no SRV record")
        allowed: list[_Place] = []
        denied: list[str] = []
        for host, port in found:
            try:
                addresses = await self._look_up(user, partial(self._resolve, host, port))
            except OSError:
                continue
            for address in addresses:
                ruling = rules.check_found(host, address, port)
                if ruling.allowed:
                    allowed.append(_Place(host, port, address))
                else:
                    denied.append(_denied(user, ruling.text, rules.missing_rule(host, port)))
        if not allowed:
            if not denied:
                raise _Refused(RejectReason.NAME_NOT_RESOLVED, f"no host in the SRV record of {record} has an address")
            _log.warning("leads_inside", user=user, target=record, text=denied[0])
            text = f"the SRV record of {record} leads to no host and port that the rules allow"
            raise _Refused(RejectReason.DENIED, text)
        return allowed

    async def _look_up(self, user: str, lookup: Callable[[], Coroutine[Any, Any, list[_T]]]) -> list[_T]:
        """Return what the lookup finds when it is the user's turn, and count it."""
        clock = asyncio.get_running_loop().time
        began_s, outcome = clock(), "failed"
        try:
            found = await self._lookups.run(user, lookup)
            outcome = "found" if found else "not_found"
            return found
        except socket.gaierror as error:
            outcome = "not_found" if error.errno == socket.EAI_NONAME else "failed"
            raise
        finally:
            self._counts.note_lookup(outcome, clock() - began_s)

    async def _connect_unix(self, request: ExitRequest) -> tuple[Side, _Dialled]:
        """Return a connection to a Unix socket. Raise _Refused if nothing accepts it there."""
        path = request.target.host.removeprefix(UNIX_PREFIX)
        try:
            _, side = await asyncio.get_running_loop().create_unix_connection(SocketSide, path)
        except (ConnectionRefusedError, FileNotFoundError):
            raise _Refused(RejectReason.REFUSED, f"nothing listens on {path}") from None
        except OSError as error:
            raise _Refused(RejectReason.UNREACHABLE, f"{path}: {error.strerror or error}") from None
        _log.info("dialled", **_who(request))
        return side, _Dialled(request.user, request.target.host, request.target.port, None)

    async def _addresses(self, user: str, host: str, port: int, rules: Ruleset) -> list[IPAddress]:
        """Return the addresses of the host that the rules allow, at least one. Raise _Refused if there is none."""
        name = read_host(host)
        if name is None or not isinstance(name, str):
            return [ip_address(host)]  # check_target has allowed it
        try:
            found = await self._look_up(user, lambda: self._resolve(name, port))
        except OSError:
            found = []
        if not found:
            raise _Refused(RejectReason.NAME_NOT_RESOLVED, f"{name} has no address")
        rulings = [(address, rules.check_address(address, port, name)) for address in found]
        allowed = [address for address, ruling in rulings if ruling.allowed]
        if not allowed:
            # The refusal does not contain the address: users must not learn the private addresses of names.
            address, ruling = rulings[0]
            text = _denied(user, ruling.text, rules.missing_address_rule(address, port, name))
            text += rules.resolving_clause(address, port, name)
            _log.warning("leads_inside", user=user, target=name, text=text)
            text = f"{name} has no address that the rules allow; the log of the exit says which line would allow it"
            raise _Refused(RejectReason.DENIED, text)
        return allowed

    async def _connect(self, request: ExitRequest, places: list[_Place]) -> tuple[Side, _Dialled]:
        """Return a connection to the first place that accepts.

        Each attempt gets an equal share of the remaining time, so that one dead address cannot use up all of it. The
        last one gets what the caller leaves.
        """
        loop = asyncio.get_running_loop()
        ends = loop.time() + self._dial_seconds
        failure: OSError = OSError("no address")
        for index, place in enumerate(places):
            address, left = place.address, len(places) - index
            literal = str(embedded_addresses(address)[0] if address.version == 6 and address.ipv4_mapped else address)
            try:
                async with asyncio.timeout((ends - loop.time()) / left if left > 1 else None):
                    side = await self._open_side(request, literal, place.port)
            except OSError as error:  # includes TimeoutError
                failure = error
                continue
            _log.info("dialled", **_who(request), address=literal)
            return side, _Dialled(request.user, request.target.host, request.target.port, place)
        if isinstance(failure, TimeoutError):
            raise failure
        if isinstance(failure, ConnectionRefusedError):
            raise _Refused(RejectReason.REFUSED, f"{_label(request)} refused the connection")
        raise _Refused(RejectReason.UNREACHABLE, f"{_label(request)}: {failure.strerror or failure}")

    async def _open_side(self, request: ExitRequest, literal: str, port: int) -> Side:
        if request.target.host.startswith(UDP_PREFIX):
            return await open_datagrams(literal, port)
        made = partial(TargetSide, request.user, self._buffers)
        return (await asyncio.get_running_loop().create_connection(made, literal, port))[1]


def _denied(user: str, why: str, rule: str) -> str:
    """Return why the exit denies a target. `rule` would allow it; it is empty if no rule can."""
    if not rule:
        return why
    table = "[everyone]" if is_of_provider(user) else user_table(user)
    place = f"under {table} in the configuration of the exit, or --allow {rule} in its command"
    return f'{why}; this line would allow it: connect = ["{rule}"] {place}'


def _address(dialled: _Dialled) -> str:
    """Return the address to which a connection leads; for a Unix socket, its path."""
    place = dialled.place
    if place is None:
        return dialled.host.removeprefix(UNIX_PREFIX)
    return f"[{place.address}]:{place.port}" if place.address.version == 6 else f"{place.address}:{place.port}"


def _label(request: ExitRequest) -> str:
    return target_text(request.target.host, request.target.port)


def _who(request: ExitRequest) -> dict[str, str]:
    return {"user": request.user, "target": _label(request)}
