"""Handshakes that an endpoint accepts: users take turns, because a handshake costs as much time as many packets.

Without turns, a body of a thousand CONNECTs would hold up all other users of an exit or a service for half a second.
"""

from collections.abc import Callable

from tunnel.turns.rounds import RoundTurns

__all__ = ["HANDSHAKES_PER_ROUND", "HANDSHAKES_PER_USER_MAX", "HandshakeSlot", "HandshakeTurns"]

HANDSHAKES_PER_USER_MAX = 1024
"""Unfinished handshakes that one user may have at an acceptor, about 20 KiB each. The number equals a service's default
backlog, which limits its unanswered CONNECTs."""
HANDSHAKES_PER_ROUND = 4
"""Handshakes answered in one round of the event loop, about 0.5 ms each; after them, other work has its turn."""


class HandshakeSlot:
    """One unfinished handshake, from its CONNECT on. It counts for its user until `leave`."""

    def __init__(self, turns: "HandshakeTurns", client_hello: bytes, user: str) -> None:
        self.client_hello = client_hello
        self.is_used = False  # True: a transport has this slot, and will call `leave`
        self._turns = turns
        self._user = user
        self._has_left = False

    def ask(self, answer: Callable[[], None]) -> None:
        """Call `answer`, which does the work of the handshake, when it is the user's turn: now, or soon."""
        self._turns.ask(self._user, answer)

    def leave(self) -> None:
        """Count the handshake as ended. It has no effect when it is called again."""
        if not self._has_left:
            self._has_left = True
            self._turns.leave(self._user)


class HandshakeTurns:
    """The unfinished handshakes of an endpoint."""

    def __init__(self) -> None:
        self._counts: dict[str, int] = {}  # unfinished handshakes, by user
        self._rounds = RoundTurns(HANDSHAKES_PER_ROUND)

    def enter(self, client_hello: bytes, user: str) -> HandshakeSlot | None:
        """Return the slot of a new handshake; None if the user has too many that are unfinished."""
        count = self._counts.get(user, 0)
        if count >= HANDSHAKES_PER_USER_MAX:
            return None
        self._counts[user] = count + 1
        return HandshakeSlot(self, client_hello, user)

    def leave(self, user: str) -> None:
        """Count a handshake of this user as ended."""
        self._counts[user] -= 1
        if not self._counts[user]:
            del self._counts[user]

    def ask(self, user: str, answer: Callable[[], None]) -> None:
        """Call `answer` when it is the user's turn."""
        self._rounds.ask(user, answer)
