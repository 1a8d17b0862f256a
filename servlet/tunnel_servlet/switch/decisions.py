"""What the relay asks before it lets anything happen: the rules live with whoever answers, not in the switch."""

import enum
from collections.abc import Callable
from typing import TypeAlias

import msgspec

from tunnel.wire import Frame, RejectReason, Target

__all__ = ["Authorise", "Decision", "Deny", "Hand", "HandTo", "MayListen", "PacketFilter"]


class HandTo(enum.Enum):
    """Who is to accept a connection."""

    EXIT = "exit"  # an attachment that dials TCP targets
    SERVICE = "service"  # an attachment that listens under the name


class Hand(msgspec.Struct, frozen=True):
    """Allowed. `name` is the service to hand it to (default: the target's host), or the endpoint name of the exit
    (default: any exit)."""

    to: HandTo
    name: str = ""


class Deny(msgspec.Struct, frozen=True):
    """Not allowed: the initiator gets REJECTED with this."""

    reason: int = RejectReason.DENIED
    text: str = ""


Decision: TypeAlias = Hand | Deny
Authorise: TypeAlias = Callable[[str, Target], Decision]  # the user, what it wants to reach (3.2)
MayListen: TypeAlias = Callable[[str, str], bool]  # the user, the service's name (2.8)
PacketFilter: TypeAlias = Callable[[Frame], bool]  # False: the packet was lost on purpose
