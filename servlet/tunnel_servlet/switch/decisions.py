"""The questions that the switch asks before it allows something, and their answers. The rules are in `access`."""

import enum
from collections.abc import Callable, Mapping
from typing import Protocol, TypeAlias

import msgspec

from tunnel.wire import Frame, PublicPlace, RejectReason, Target

__all__ = [
    "Authorise",
    "Decision",
    "Deny",
    "Hand",
    "HandTo",
    "MayListen",
    "PacketFilter",
    "Publisher",
    "RatesOf",
    "Rules",
    "SeparateExits",
]


class HandTo(enum.Enum):
    """The kind of attachment that accepts a connection."""

    EXIT = "exit"  # an attachment that dials targets
    SERVICE = "service"  # an attachment that listens under the name


class Hand(msgspec.Struct, frozen=True):
    """The connection is allowed. `name` is the service that accepts it (default: the target's host), or the endpoint
    name of the exit (default: any exit). `rule` is the rule that allows it, as the operator wrote it."""

    to: HandTo
    name: str = ""
    rule: str = ""


class Deny(msgspec.Struct, frozen=True):
    """The connection is denied: the initiator gets REJECTED with this reason and text."""

    reason: int = RejectReason.DENIED
    text: str = ""


Decision: TypeAlias = Hand | Deny
Authorise: TypeAlias = Callable[[str, Target], Decision]  # user, and the target that is requested or asked about (3.2)
MayListen: TypeAlias = Callable[[str, str], bool]  # user, name of the service (2.8)
PacketFilter: TypeAlias = Callable[[Frame], bool]  # False: drop the packet on purpose
# The rates of a user's connections to a target, or of those that the user serves: bytes per second, by rule. The empty
# rule stands for all connections of the user.
RatesOf: TypeAlias = Callable[[str, Target], Mapping[str, int]]


class Publisher:
    """Opens services to people without the tunnel. This base class opens none."""

    def publish(self, user: str, name: str, place: PublicPlace) -> str:
        """Lead the connections that come to this public place to the service of the user.

        Return why that is not possible, or an empty string. A repeated call changes nothing.
        """
        return "this relay opens no services to people without the tunnel: offer the service without a public port"

    def withdraw(self, name: str) -> None:
        """Close the place of a service. Open connections go on."""

    def why_denied(self, user: str, place: PublicPlace) -> str:
        """Return why the rules do not allow the user the place, or an empty string."""
        return ""


class SeparateExits:
    """Hears about exits in processes of their own, beside the relay's inline exit. This base class expects none."""

    def may_come(self) -> bool:
        """Whether the rules allow such exits. After a start, connections then wait for them for a while (6.9)."""
        return False

    def took_over(self, user: str, name: str) -> None:
        """The first one is attached: it gets the connections that the inline exit got so far."""

    def on_last_left(self) -> None:
        """The last one leaves, or is no longer attached: the inline exit gets the connections from now on."""

    def silent(self, user: str, name: str) -> None:
        """Nothing comes from this one. Until it does, others get its connections: the inline one, if there is no other,
        gets those that this one would not encrypt."""


class Rules(Protocol):
    """All rules together. When they have changed, the switch checks everything that is open against them (9.7)."""

    def has_user(self, user: str) -> bool:
        """Whether there is still such a user."""

    def is_exit(self, user: str) -> bool:
        """Whether endpoints of this user may be exits."""

    def authorise(self, user: str, target: Target) -> Decision:
        """Decide whether the user may reach the target."""

    def may_listen(self, user: str, name: str) -> bool:
        """Whether the user may listen under the name."""
