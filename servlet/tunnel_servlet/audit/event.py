"""An event of the audit: one line of JSON. docs/AUDIT.md lists the kinds and the fields."""

import enum
from datetime import UTC, datetime

import msgspec

from tunnel.ground.printable import ascii_json

__all__ = ["FIELDS", "TEXT_LETTERS_MAX", "AuditEvent", "Kind", "Result", "decode_event", "encode_event", "time_text"]

TEXT_LETTERS_MAX = 400  # of a text for people, and of a name that a peer has chosen: a line then has at most 4 KiB


class Kind(enum.Enum):
    """The kinds of events. The value is the name in the file."""

    CONNECTION_ALLOWED = "connection_allowed"
    CONNECTION_REFUSED = "connection_refused"
    CONNECTION_ENDED = "connection_ended"
    ENDPOINT_ATTACHED = "endpoint_attached"
    ENDPOINT_DETACHED = "endpoint_detached"
    SERVICE_OFFERED = "service_offered"
    SERVICE_REFUSED = "service_refused"
    STRANGER_JOINED = "stranger_joined"
    TARGET_DIALLED = "target_dialled"
    TARGET_REFUSED = "target_refused"
    TOKEN_REFUSED = "token_refused"
    TOKEN_ADDED = "token_added"
    TOKEN_CHANGED = "token_changed"
    TOKEN_EXPIRED = "token_expired"
    TOKEN_REVOKED = "token_revoked"
    RULES_CHANGED = "rules_changed"
    ADMIN = "admin"
    RELAY_STARTED = "relay_started"
    RELAY_STOPPED = "relay_stopped"
    EVENTS_SUMMED = "events_summed"
    EVENTS_LOST = "events_lost"
    FILE_REMOVED = "file_removed"


class Result(enum.Enum):
    """Whether an operator's act was done."""

    DONE = "done"
    REFUSED = "refused"


class AuditEvent(msgspec.Struct, frozen=True, omit_defaults=True, kw_only=True):
    """One event. Fields that an event does not have are left out of its line; a token is never in it."""

    time: str = ""  # set, with `run` and `number`, when the event is taken
    run: str = ""
    number: int = 0
    event: Kind
    user: str = ""
    group: str = ""
    token: str = ""
    source: str = ""
    forwarded: str = ""
    endpoint: str = ""
    role: str = ""
    connection: str = ""
    peer: str = ""
    target: str = ""
    service: str = ""
    owner: str = ""
    acceptor: str = ""
    acceptor_user: str = ""
    address: str = ""
    rule: str = ""
    by: str = ""
    reason: str = ""
    text: str = ""
    sent_bytes: int | None = None
    received_bytes: int | None = None
    seconds: float | None = None
    resumed: bool = False
    question: bool = False
    act: str = ""
    result: Result | None = None
    added: list[str] = []
    removed: list[str] = []
    counts: dict[str, int] = {}
    file: str = ""
    since: str = ""


FIELDS = AuditEvent.__struct_fields__
_ENCODER = msgspec.json.Encoder()
_DECODER = msgspec.json.Decoder(AuditEvent)


def encode_event(event: AuditEvent) -> bytes:
    """Return the line of an event, in ASCII: whatever peers chose, it is one line, which a terminal may show."""
    return ascii_json(_ENCODER.encode(event).decode()).encode() + b"\n"


def decode_event(line: bytes) -> AuditEvent | None:
    """Return the event of a line, or None if it is none, such as one that was cut off when a process was killed."""
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def time_text(since_epoch_us: int) -> str:
    """Return a time as it stands in events: ISO 8601, UTC, in microseconds."""
    seconds, micro = divmod(since_epoch_us, 1_000_000)
    return (
        datetime.fromtimestamp(seconds, UTC).replace(microsecond=micro, tzinfo=None).isoformat("T", "microseconds")
        + "Z"
    )
