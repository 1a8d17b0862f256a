"""The settings of a broker, and the limits that keep one client from using up what others need."""

from __future__ import annotations

from dataclasses import dataclass, field

import msgspec

from tunnel.messages.kept.backlog import DiscardPolicy
from tunnel.messages.kept.log import LogConfig

__all__ = ["BEHIND_MESSAGES", "BrokerSettings", "TopicSpec"]

BEHIND_MESSAGES = 10_000  # the threshold for a backlog in remoting-and-backlog.md (docs/REFERENCES.md)
_MIB = 1024 * 1024


class TopicSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How a topic is kept. Stored beside its messages as `topic.json`."""

    partitions: int = 1
    storage: str = "log"
    """`log`: on disk. `memory`: a backlog that discards by `policy` when it is full, and is empty after a restart."""
    policy: str = DiscardPolicy.OLDEST.value
    messages_max: int = 100_000
    """Memory only: the largest number of messages of one partition."""
    bytes_max: int = 16 * _MIB
    """Memory only: the largest size of one partition."""
    retain_bytes: int | None = None
    """Log only: the size of one partition above which its oldest messages are removed; None: as the broker says."""
    retain_s: float | None = None
    """Log only: the age in seconds at which messages are removed; None: as the broker says."""

    def __post_init__(self) -> None:
        policies = [policy.value for policy in DiscardPolicy]
        if self.storage not in ("log", "memory"):
            raise ValueError(f"storage {self.storage!r}: choose log or memory")
        if self.policy not in policies:
            raise ValueError(f"policy {self.policy!r}: choose one of {', '.join(policies)}")
        if self.partitions < 1 or self.messages_max < 1 or self.bytes_max < 1:
            raise ValueError("partitions, messages_max and bytes_max must be positive")
        if (self.retain_bytes or 0) < 0 or (self.retain_s or 0) < 0:
            raise ValueError("retain_bytes and retain_s must not be negative")


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerSettings:
    """How a broker flushes, what it keeps, and its limits."""

    log: LogConfig = field(default_factory=lambda: LogConfig(pending_bytes_max=8 * _MIB))
    """For each partition: when to flush, when to start a new segment, what to keep."""
    replica: str = ""
    """The address of a replica, to which readers that are far behind are redirected."""
    behind_bytes: int = 64 * _MIB  # a segment
    """A reader is far behind when more bytes than this are before it, or when what it reads next is not in the page
    cache."""
    master: str = ""
    """This broker is a replica of the broker at this address: it copies its topics, and takes no messages itself."""
    creates_topics: bool = True
    """Whether a message for an unknown topic creates the topic."""
    new_topic: TopicSpec = TopicSpec()
    """How such a topic is kept."""
    partitions_max: int = 1_000
    """The largest number of partitions of all topics together: each on disk costs a thread and three descriptors. Here
    and below, what one user has may be no more than what is free."""
    positions_max: int = 100_000
    """The largest number of positions that are kept."""
    position_s: float = 7 * 86_400.0
    """A position is removed when its group has had no member, and has stored nothing, for longer."""
    members_max: int = 10_000
    """The largest number of members of all groups."""
    memory_topics_bytes_max: int = 512 * _MIB
    """The largest memory of all partitions in memory: their `bytes_max`, and 256 bytes for each message."""
    requests_bytes_max: int = 256 * _MIB
    """The largest size of all requests that are being answered."""
    connections_max: int = 1_000
    request_bytes_max: int = 16 * _MIB
    """The largest request; a frame cannot be larger either."""
    large_requests_max: int = 8
    """The number of connections whose incomplete request may exceed 256 KiB; further ones wait."""
    disk_reserve_bytes: int = 64 * _MIB
    """Messages are refused while the disk has less room than this, so that positions can still be stored."""
    session_s: float = 10.0
    """A member of a group that has been silent for longer loses its partitions."""
