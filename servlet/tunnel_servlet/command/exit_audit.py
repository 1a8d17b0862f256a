"""The audit of an exit in a process of its own: which addresses it has dialled for whom, and what it has refused."""

from typing import Any

from tunnel import ExitRequest, RejectReason
from tunnel.ground.special_targets import target_text
from tunnel_servlet.audit.event import AuditEvent, Kind
from tunnel_servlet.audit.trail import Trail
from tunnel_servlet.exit.dialer import DialWitness

__all__ = ["ExitAudit"]


class ExitAudit(DialWitness):
    """Writes what the dialer of an exit does. Its ids of connections are those that relays call `peer`."""

    def __init__(self, trail: Trail) -> None:
        self._trail = trail

    def on_dialled(self, request: ExitRequest, address: str, rule: str) -> None:
        self._note(AuditEvent(event=Kind.TARGET_DIALLED, address=address, rule=rule, **_facts(request)))

    def on_refused(self, request: ExitRequest, reason: RejectReason, text: str) -> None:
        self._note(
            AuditEvent(event=Kind.TARGET_REFUSED, by="exit", reason=reason.name.lower(), text=text, **_facts(request))
        )

    def why_closed(self, user: str) -> str:
        return self._trail.why_closed(user)

    def _note(self, event: AuditEvent) -> None:
        self._trail.note(event, event.user)


def _facts(request: ExitRequest) -> dict[str, Any]:
    target = request.target
    return {
        "user": request.user,
        "target": target_text(target.host, target.port),
        "connection": f"{request.connection_id:08x}",
    }
