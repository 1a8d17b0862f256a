"""Relays for tests: the real switch, in memory or behind a small HTTP server, with faults that a test chooses."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Self

from tunnel import Attachment, memory_attach
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.attachment import endpoint_of
from tunnel.carriers.memory import Answered, LinkEnd
from tunnel.wire import Frame, Message, Target, TargetKind, decode_envelope
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.decisions import Decision, Deny, Hand, HandTo, PacketFilter
from tunnel_servlet.web.host import SwitchHost

__all__ = [
    "LOSE_REQUEST",
    "LOSE_RESPONSE",
    "Fault",
    "InProcessTestRelay",
    "MemoryTestRelay",
    "TestRelay",
    "authorise",
    "inside",
    "may_listen",
]


@dataclass(frozen=True, slots=True)
class Fault:
    """The fate of an exchange: the response of a proxy in the relay's place, or none."""

    status: int = 0
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)
    applies: bool = False  # the relay receives the request first

    def __bool__(self) -> bool:
        return True


LOSE_REQUEST = Fault()
LOSE_RESPONSE = Fault(applies=True)


def inside(attachment: Attachment) -> AttachedEndpoint:
    """Return the endpoint behind an attachment to one relay."""
    found = endpoint_of(attachment)
    assert isinstance(found, AttachedEndpoint)
    return found


def authorise(user: str, target: Target) -> Decision:
    """Allow every user every target and every service but "secret"."""
    if target.host == "secret":
        return Deny(text="not for you")
    return Hand(HandTo.SERVICE if target.kind == TargetKind.SERVICE else HandTo.EXIT)


def may_listen(user: str, name: str) -> bool:
    return name != "forbidden"


class TestRelay:
    """A relay that can lose its memory. `fault` decides the fate of each request."""

    __test__ = False
    kind = ""

    def __init__(self, packet_filter: PacketFilter | None = None, **settings: Any) -> None:
        self.packet_filter = packet_filter
        self.settings = settings
        self.lives = 0
        self.fault: Callable[[Message], Fault | None] = lambda message: None
        self.requests = 0
        self.core = self._life()

    def _life(self) -> SwitchHost:
        self.lives += 1
        # In its first life the relay need not wait for targets; after a restart, attachments come back in any order.
        settling = {"settle_us": 1} if self.lives == 1 else {}
        config = SwitchConfig(**{**settling, **self.settings})
        return self.make_core(config)

    def make_core(self, config: SwitchConfig) -> SwitchHost:
        """Make the switch, with all the state that a restart loses."""
        return SwitchHost(config, authorise, may_listen=may_listen, packet_filter=self.packet_filter)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *exception: object) -> None:
        self.lives += 1
        self.core.close()

    def attach(self, user: str = "ann", **options: Any) -> Attachment:
        """Make an attachment of this user."""
        raise NotImplementedError

    def restart(self) -> None:
        """Do what `kill -9` and a restart do: open exchanges get no answer, and all state is lost."""
        dead, self.core = self.core, self._life()
        dead.close()

    def judge(self, body: bytes) -> Fault | None:
        """Return the fate of a request."""
        self.requests += 1
        message = decode_envelope(body)
        return self.fault(message) if not isinstance(message, type) else None  # type: ignore[arg-type]


class MemoryTestRelay(TestRelay):
    """A relay without HTTP, and without links. It never answers a lost exchange."""

    kind = "memory"

    def __init__(self, packet_filter: PacketFilter | None = None, **settings: Any) -> None:
        super().__init__(packet_filter, **settings)
        self._faults: dict[int, asyncio.Handle] = {}  # answers in the relay's place that have not left yet

    def attach(self, user: str = "ann", **options: Any) -> Attachment:
        return memory_attach(self, user=user, **options)

    def post(self, user: str, body: bytes, answered: Answered, *, is_exit: bool, identity: bytes | None = None) -> int:
        fault = self.judge(body)
        life = self.lives

        def answered_in_life(status: int, answer: bytes) -> None:
            if self.lives == life:  # a killed relay sends nothing more
                answered(status, answer)

        if fault is None:
            return self.core.post(user, body, answered_in_life, is_exit=is_exit, identity=identity)
        if fault.applies:
            self.core.post(user, body, lambda status, answer: None, is_exit=is_exit, identity=identity)
        if not fault.status:
            return 0
        number = -self.requests  # the relay's own numbers are above 0
        self._faults[number] = asyncio.get_running_loop().call_soon(answered, fault.status, fault.body)
        return number

    def on_gone(self, number: int) -> None:
        if number < 0:
            self._faults.pop(number).cancel()
        else:
            self.core.on_gone(number)

    def join_link(self, link: LinkEnd, user: str, identity: bytes, epoch: int, generation: int) -> int:
        return 0

    def take_packets(self, link: int, limit_bytes: int) -> list[Frame]:
        raise AssertionError("there is no link")

    def post_packets(self, link: int, frames: list[Frame], handled: Callable[[], None]) -> None:
        raise AssertionError("there is no link")

    def link_closed(self, link: int) -> None:
        raise AssertionError("there is no link")


class InProcessTestRelay(MemoryTestRelay):
    """A relay without HTTP, to which endpoints have links in the process, as they have to the real one."""

    kind = "memory with links"

    def join_link(self, link: LinkEnd, user: str, identity: bytes, epoch: int, generation: int) -> int:
        return self.core.join_link(link, user, identity, epoch, generation)

    def take_packets(self, link: int, limit_bytes: int) -> list[Frame]:
        return self.core.take_packets(link, limit_bytes)

    def post_packets(self, link: int, frames: list[Frame], handled: Callable[[], None]) -> None:
        self.core.post_packets(link, frames, handled)

    def link_closed(self, link: int) -> None:
        self.core.link_closed(link)
