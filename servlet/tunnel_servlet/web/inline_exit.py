"""The inline exit: an exit in the relay's own process."""

from tunnel import Attachment, ExitRequest, memory_attach
from tunnel.process.descriptors import allowed_connections
from tunnel.wire import inline_exit_id
from tunnel_servlet.access.grants import EXIT_USER
from tunnel_servlet.exit.dialer import Dialer, DialWitness
from tunnel_servlet.web.auditing import RelayAudit
from tunnel_servlet.web.relay import Relay

__all__ = ["InlineExit"]

_LINGER_S = 2.0  # time for written bytes to reach their endpoint when the relay stops


class _Witness(DialWitness):
    """Tells the relay's audit the addresses that were dialled; the switch tells it all else."""

    def __init__(self, audit: RelayAudit) -> None:
        self._audit = audit

    def on_dialled(self, request: ExitRequest, address: str, rule: str) -> None:
        self._audit.note_dialled(request.connection_id, address)


class InlineExit:
    """An exit that dials from the relay's process. Its streams end when the relay stops."""

    def __init__(self, relay: Relay) -> None:
        limits = relay.config.limits
        clients = allowed_connections(limits.connections_max)
        self.dialer = Dialer(
            relay.rules_of,
            dial_seconds=limits.dial_seconds,
            connections_max=allowed_connections(limits.exit_connections_max, beside=clients),
            witness=_Witness(relay.audit),
        )
        relay.when_changed(self.dialer.recheck)
        relay.dialer = self.dialer
        self._relay = relay
        self._attachment: Attachment | None = None

    async def start(self) -> None:
        """Attach to the relay's switch."""
        self._attachment = memory_attach(
            self._relay.host,
            user=EXIT_USER,
            name="inline",
            identity=inline_exit_id(self._relay.host.switch.epoch),
            exit_handler=self.dialer,
            linger=_LINGER_S,
            trace=self._relay.trace,
        )
        await self._attachment.start()

    async def close(self) -> None:
        """End all connections with an error, and detach from the relay."""
        self.dialer.abort()
        if self._attachment is not None:
            await self._attachment.close()
