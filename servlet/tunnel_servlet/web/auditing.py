"""What a relay writes into its audit: what the switch tells it, refused tokens, changed rules, acts of operators.

The class `RelayAudit` is the only place that makes events of a relay. Without [audit] in the configuration it has no
trail, and each method does nothing.
"""

from collections import OrderedDict
from typing import Any

from tunnel import __version__
from tunnel.ground.special_targets import target_text
from tunnel.process.command_line import writes_events
from tunnel.wire import RejectReason, Target, TargetKind
from tunnel_servlet.access.grants import GrantTable
from tunnel_servlet.access.tokens import TokenTable
from tunnel_servlet.audit.changes import changes
from tunnel_servlet.audit.event import AuditEvent, Kind, Result
from tunnel_servlet.audit.sums import NOBODY
from tunnel_servlet.audit.trail import Trail, open_place
from tunnel_servlet.config import AuditSettings, ConfigError
from tunnel_servlet.switch.witness import Acceptor, Ending, EndpointEnd, EndpointFacts, Opening, Witness

__all__ = ["RelayAudit", "open_audit"]

_DIALLED_MAX = 16_384  # addresses that were dialled for connections that are not bound yet
_ROLES = {False: "client", True: "exit"}


class RelayAudit(Witness):
    """The audit of one relay."""

    def __init__(self) -> None:
        self.trail: Trail | None = None
        # By the inline exit's id of a connection: the address that it has dialled, before and while it is open.
        self._dialled: OrderedDict[int, str] = OrderedDict()
        self._addresses: dict[int, str] = {}

    def note(self, event: AuditEvent, payer: str | None = None) -> None:
        """Write an event. It counts for `payer`, by default the user that it names; "" is the relay itself."""
        if self.trail is not None:
            self.trail.note(event, event.user if payer is None else payer)

    # --- the operator

    def note_started(self, *, tokens: int, users: int) -> None:
        """Note that the relay takes connections from now on."""
        counts = {"tokens": tokens, "users": users}
        self.note(AuditEvent(event=Kind.RELAY_STARTED, text=f"version {__version__}", counts=counts))

    async def close(self) -> None:
        """Note that the relay has ended, and write what waits."""
        trail, self.trail = self.trail, None
        if trail is not None:
            trail.note(AuditEvent(event=Kind.RELAY_STOPPED), "")
            await trail.close()

    def note_act(self, act: str, source: str = "", why_refused: str = "", **more: str) -> None:
        """Note an act of an operator, such as "drain", or that it could not be done. `source` is the operator's
        address, or the name of a signal; `more` are fields of the event, such as `user`."""
        result = Result.REFUSED if why_refused else Result.DONE
        fields: dict[str, Any] = {"text": why_refused} | more
        self.note(AuditEvent(event=Kind.ADMIN, act=act, source=source, result=result, **fields), "")

    def note_no_operator(self, act: str, source: str, why: str) -> None:
        """Note an order that was refused because it did not prove to be an operator's."""
        self.note(AuditEvent(event=Kind.ADMIN, act=act, source=source, result=Result.REFUSED, text=why), NOBODY)

    def note_changes(self, before: tuple[TokenTable, GrantTable], after: tuple[TokenTable, GrantTable]) -> None:
        """Note what a new configuration has changed."""
        if self.trail is not None:
            for event in changes(before, after):
                self.note(event, payer="")

    def note_refused_token(
        self, source: str, reason: str, forwarded: str = "", *, user: str = "", key_id: str = "", text: str = ""
    ) -> None:
        """Note a request whose token or certificate was refused. It counts for nobody: who sent it is not proved."""
        fields: dict[str, Any] = {
            "source": source,
            "forwarded": forwarded,
            "reason": reason,
            "user": user,
            "token": key_id,
        }
        self.note(AuditEvent(event=Kind.TOKEN_REFUSED, text=text, **fields), NOBODY)

    def note_expired(self, user: str, key_id: str = "") -> None:
        """Note that a token, or the last one of a user of the identity provider, has expired."""
        self.note(AuditEvent(event=Kind.TOKEN_EXPIRED, user=user, token=key_id))

    # --- strangers, and the inline exit

    def note_stranger(self, source: str, owner: str, service: str, connection_id: int) -> None:
        """Note that the connection of a person without the tunnel was joined to a service."""
        fields: dict[str, Any] = {
            "source": source,
            "owner": owner,
            "service": service,
            "connection": _hex(connection_id),
        }
        self.note(AuditEvent(event=Kind.STRANGER_JOINED, **fields), owner)

    def note_dialled(self, connection_id: int, address: str) -> None:
        """Remember the address to which the inline exit has led the connection to which it has given this id."""
        if self.trail is not None:
            self._dialled[connection_id] = address
            if len(self._dialled) > _DIALLED_MAX:
                self._dialled.popitem(last=False)

    # --- Witness

    def why_closed(self, user: str) -> str:
        return "" if self.trail is None else self.trail.why_closed(user)

    def on_attached(self, endpoint: EndpointFacts) -> None:
        if self.trail is not None:
            self.note(AuditEvent(event=Kind.ENDPOINT_ATTACHED, **_endpoint(endpoint)))

    def on_detached(self, endpoint: EndpointFacts, why: EndpointEnd) -> None:
        if self.trail is not None:
            self.note(AuditEvent(event=Kind.ENDPOINT_DETACHED, reason=why.value, **_endpoint(endpoint)))

    def on_service(self, endpoint: EndpointFacts, name: str, *, is_up: bool, text: str) -> None:
        if self.trail is not None:
            kind = Kind.SERVICE_OFFERED if is_up else Kind.SERVICE_REFUSED
            self.note(AuditEvent(event=kind, service=name, text=text, **_endpoint(endpoint)))

    def on_opened(self, opening: Opening, acceptor: Acceptor) -> None:
        if self.trail is None:
            return
        address = self._dialled.pop(acceptor.connection_id, "")
        if address:
            self._addresses[acceptor.connection_id] = address
        fields = _opening(opening) | _acceptor(acceptor) | {"address": address}
        self.note(
            AuditEvent(event=Kind.CONNECTION_ALLOWED, resumed=opening.is_resumed, **fields), opening.owner or None
        )

    def on_refused(
        self, opening: Opening, acceptor: Acceptor | None, reason: int, text: str, *, is_answer: bool = False
    ) -> None:
        if self.trail is None:
            return
        by = "relay" if acceptor is None or not is_answer else "exit" if acceptor.is_exit else "service"
        fields = _opening(opening) | _acceptor(acceptor) | {"by": by, "reason": _reason(reason), "text": text}
        fields |= {"resumed": opening.is_resumed, "question": opening.is_question}
        self.note(AuditEvent(event=Kind.CONNECTION_REFUSED, **fields), opening.owner or None)

    def on_ended(
        self,
        opening: Opening,
        acceptor: Acceptor,
        why: Ending,
        text: str,
        *,
        sent_bytes: int,
        received_bytes: int,
        lasted_us: int,
    ) -> None:
        if self.trail is None:
            return
        address = self._addresses.pop(acceptor.connection_id, "")
        fields = _opening(opening) | _acceptor(acceptor) | {"address": address, "reason": why.value, "text": text}
        event = AuditEvent(
            event=Kind.CONNECTION_ENDED,
            sent_bytes=sent_bytes,
            received_bytes=received_bytes,
            seconds=round(lasted_us / 1e6, 3),
            **fields,
        )
        self.note(event, opening.owner or None)


def open_audit(settings: AuditSettings) -> Trail:
    """Begin the audit. Raise ConfigError if it cannot be written to: a relay that shall audit does not run without."""
    if settings.to == "stdout" and writes_events():
        raise ConfigError('audit.to: with --json, standard output has the log: write to = "file", or leave --json out')
    try:
        return Trail(open_place(settings), settings)
    except OSError as error:
        where = settings.file if settings.to == "file" else settings.syslog
        why = error.strerror or error
        raise ConfigError(f"audit: {where} cannot be written to: {why}: name another place") from None


def _endpoint(endpoint: EndpointFacts) -> dict[str, Any]:
    origin = endpoint.origin
    return {
        "user": endpoint.user,
        "token": origin.key_id,
        "source": origin.source,
        "forwarded": origin.forwarded,
        "endpoint": endpoint.name,
        "role": _ROLES[endpoint.is_exit],
    }


def _opening(opening: Opening) -> dict[str, Any]:
    target = opening.target
    is_service = target is not None and target.kind == TargetKind.SERVICE
    return {
        **_endpoint(opening.endpoint),
        "connection": _hex(opening.connection_id),
        "service" if is_service else "target": "" if target is None else _label(target),
        "rule": opening.rule,
        "owner": opening.owner,
    }


def _acceptor(acceptor: Acceptor | None) -> dict[str, Any]:
    if acceptor is None:
        return {}
    peer = _hex(acceptor.connection_id) if acceptor.connection_id else ""
    return {"acceptor": acceptor.name, "acceptor_user": acceptor.user, "peer": peer}


def _label(target: Target) -> str:
    return target.host if target.kind == TargetKind.SERVICE else target_text(target.host, target.port)


def _reason(reason: int) -> str:
    try:
        return RejectReason(reason).name.lower()
    except ValueError:
        return f"reason_{reason}"


def _hex(number: int) -> str:
    """Return an id as traces and their reports show it."""
    return f"{number:08x}"
