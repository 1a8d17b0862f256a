"""What the switch tells whoever keeps a record of it: endpoints that come and go, and connections that are opened,
refused and ended."""

import enum

import msgspec

from tunnel.wire import Target

__all__ = ["NOWHERE", "Acceptor", "Ending", "EndpointEnd", "EndpointFacts", "Opening", "Origin", "Witness"]


class Origin(msgspec.Struct):
    """Where a request or a link came from: the id of its token, the address of its sender, and the address that a
    trusted proxy named as that of the client."""

    key_id: str = ""
    source: str = ""
    forwarded: str = ""


NOWHERE = Origin()
"""The origin of an endpoint in the relay's own process."""


class EndpointFacts(msgspec.Struct):
    """An attached endpoint."""

    user: str
    name: str
    is_exit: bool
    origin: Origin


class Acceptor(msgspec.Struct):
    """The endpoint to which a connection was given. `connection_id` is its own id of the connection; 0: none yet."""

    user: str
    name: str
    is_exit: bool
    connection_id: int


class Opening(msgspec.Struct):
    """A connection that an endpoint asks for. `rule` allows it; `owner` is the user whose public service a stranger
    came to; `target` is None if the request was not understood."""

    endpoint: EndpointFacts
    connection_id: int
    target: Target | None = None
    rule: str = ""
    owner: str = ""
    is_resumed: bool = False
    is_question: bool = False


class EndpointEnd(enum.Enum):
    """Why an endpoint is attached no more."""

    LEFT = "left"  # it had said that it leaves
    SILENT = "silent"  # nothing came from it for too long
    REPLACED = "replaced"  # by a newer one of the same name
    DENIED = "denied"  # by changed tokens or rules
    KICKED = "kicked"  # by the operator
    DISPLACED = "displaced"  # at a limit


class Ending(enum.Enum):
    """Why an open connection has ended."""

    CLOSED = "closed"  # by its endpoints
    ABORTED = "aborted"  # by one of them, with an error
    LOST = "lost"  # one of them is attached no more
    DENIED = "denied"  # by changed tokens or rules
    KICKED = "kicked"  # by the operator
    MOVED = "moved"  # to another relay, where it goes on
    STOPPED = "stopped"  # the relay stops; endpoints may resume the connection at another one


class Witness:
    """Hears what happens at the switch. Times are monotonic, in microseconds. No method may take long or raise."""

    def why_closed(self, user: str) -> str:
        """Return why the user may open no connection now, or an empty string."""
        return ""

    def on_attached(self, endpoint: EndpointFacts) -> None:
        """An endpoint has attached, and has used the attachment."""

    def on_detached(self, endpoint: EndpointFacts, why: EndpointEnd) -> None:
        """An endpoint is attached no more."""

    def on_service(self, endpoint: EndpointFacts, name: str, *, is_up: bool, text: str) -> None:
        """An endpoint offers a service, and may (`is_up`) or may not."""

    def on_opened(self, opening: Opening, acceptor: Acceptor) -> None:
        """An acceptor has accepted a connection."""

    def on_refused(
        self, opening: Opening, acceptor: Acceptor | None, reason: int, text: str, *, is_answer: bool = False
    ) -> None:
        """A connection was not opened. `acceptor` is the endpoint to which it was given, if there was one; `is_answer`:
        it has refused the connection itself."""

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
        """An open connection has ended. The bytes are those that left the relay for the acceptor (`sent_bytes`), and
        for the initiator: payload, with what was sent again."""
