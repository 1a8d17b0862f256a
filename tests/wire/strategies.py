"""Hypothesis strategies for values that cross the wire."""

from hypothesis import strategies as st

from tunnel.wire import (
    Abort,
    AbortReason,
    Accepted,
    Ack,
    Answer,
    Attach,
    Attached,
    Connect,
    Dropped,
    Edge,
    End,
    Exchange,
    LinkHeader,
    ListenState,
    ListenStatus,
    Option,
    Options,
    Packet,
    Rejected,
    RejectReason,
    Status,
    StatusCode,
    Target,
    TargetKind,
    question_about,
    wrap,
)

__all__ = [
    "aborts",
    "accepteds",
    "acks",
    "answers",
    "attacheds",
    "attaches",
    "connects",
    "droppeds",
    "edges",
    "ends",
    "exchanges",
    "junk",
    "link_headers",
    "listen_states",
    "messages",
    "option_payloads",
    "options",
    "packets",
    "rejecteds",
    "statuses",
    "targets",
    "u8",
    "u16",
    "u32",
    "u64",
]

u8 = st.integers(0, 2**8 - 1)
u16 = st.integers(0, 2**16 - 1)
u32 = st.integers(0, 2**32 - 1)
u64 = st.integers(0, 2**64 - 1)
junk = st.binary(max_size=300)
_key = st.binary(min_size=16, max_size=16)
_text = st.text(max_size=40)
_name = st.text(min_size=1, max_size=60)  # at most 240 bytes, as a character has at most 4; the limit is 255
_versions = st.tuples(u16, u16).map(lambda pair: (min(pair), max(pair)))

packets = st.builds(
    Packet,
    type=u8,
    source=u32,
    destination=u32,
    sequence=u32,
    payload=st.one_of(st.binary(max_size=64), st.integers(900, 3000).map(bytes)),
    attempt=u8,
    version=u16,
)

# Whole items of unknown kinds (above 127).
_unknown = st.lists(st.tuples(st.integers(128, 255), st.binary(max_size=9)), max_size=3).map(
    lambda items: b"".join(bytes([kind, 0, len(value)]) + value for kind, value in items)
)
options = st.builds(
    Options,
    versions=st.none() | _versions,
    packet_bytes_max=st.none() | u32,
    keepalive_ms=st.none() | u32,
    user_timeout_ms=st.none() | u32,
    pull_interval_ms=st.none() | u32,
    user=st.none() | _text,
    endpoint_id=st.none() | _key,
    encryption=st.none() | st.binary(max_size=40),
    leaving=st.none() | st.just(value=True),
    draining=st.none() | st.just(value=True),
    further_ids=st.none() | st.lists(_key, min_size=1, max_size=8).map(tuple),
    move=st.none() | u32,
    unknown=_unknown,
)

targets = st.one_of(
    st.builds(Target, st.just(TargetKind.TCP), _name, st.integers(1, 65535)),
    st.builds(Target, st.just(TargetKind.SERVICE), _name),
)
connects = st.builds(Connect, _key, st.booleans(), targets, u32, options) | st.builds(
    Connect, _key, st.just(value=False), targets.map(question_about), u32, options
)
accepteds = st.builds(Accepted, _key, st.booleans(), u32, options)
rejecteds = st.builds(Rejected, _key, st.sampled_from(RejectReason) | u16, _text, options)


def _ranges(cumulative: int) -> st.SearchStrategy[list[tuple[int, int]]]:
    """Return a strategy for ranges above `cumulative`, also across the wrap."""
    steps = st.tuples(st.integers(1, 2**24), st.integers(0, 2**20))
    return st.lists(steps, max_size=32).map(
        lambda pairs: [(wrap(cumulative + first), wrap(cumulative + first + more)) for first, more in pairs]
    )


acks = u32.flatmap(lambda cumulative: st.builds(Ack, st.just(cumulative), u32, u32, u32, u8, _ranges(cumulative)))

ends = st.builds(End, u64, _key, st.none() | u32)
aborts = st.builds(Abort, st.sampled_from(AbortReason) | u16, _text)
option_payloads = st.builds(Option, u32, options)
listen_states = st.builds(ListenState, u32, st.sampled_from(ListenStatus), u16, _name)
droppeds = st.builds(Dropped, u8, u32, u32, u32)
edges = st.builds(Edge, u32, u32)
link_headers = st.builds(LinkHeader, u32, u32, u32, st.booleans())

_payload = st.binary(max_size=100)
_payloads = _payload | st.lists(_payload, max_size=3)
_secret = st.binary(min_size=32, max_size=32)
attaches = st.builds(Attach, _secret, u32, u32, u32, _versions, _text)
attacheds = st.builds(Attached, _key, u64, u32, st.booleans(), u32, u32, u32, u32, u32, u16, u16, u16, st.booleans())
_confirms = st.none() | st.tuples(u16, u32)
exchanges = st.builds(
    Exchange, _key, u64, u32, u16, u32, u32, u32, u32, u32, st.booleans(), st.booleans(), _payloads, st.booleans(),
    _confirms,
)  # fmt: skip
_evidence = st.lists(st.tuples(u16, u32), max_size=8)
answers = st.builds(Answer, u16, u32, u32, u32, st.booleans(), st.booleans(), _evidence, _payloads, st.booleans())
statuses = st.builds(Status, st.sampled_from(StatusCode) | u16, u32, _text)
messages = st.one_of(attaches, attacheds, exchanges, answers, statuses)
