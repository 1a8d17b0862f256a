"""More of presence: what a refused endpoint is told, what is counted, and what the trace says."""

from tests.servlet.support import SECOND, Peer, Relay, client_and_exit
from tunnel.traces.record import TraceEvent, TraceReason
from tunnel.wire import Attached, Status, StatusCode


def test_what_a_refused_endpoint_is_told() -> None:
    relay = Relay(attachments_max=1)
    assert Peer(relay).attach(versions=(2, 3)) == Status(StatusCode.MALFORMED, 0, "this relay speaks version 1")
    Peer(relay).attached()
    full = Peer(relay, seed=2).attach()
    assert isinstance(full, Status)
    assert (full.code, full.text) == (StatusCode.BUSY, "no more attachments")
    assert full.retry_after_ms > 0


def test_a_replaced_endpoint_is_told_why() -> None:  # 6.4
    relay = Relay()
    _, old = client_and_exit(relay, name="exit")
    Peer(relay, "exits", 9, "exit", is_exit=True).attached()
    assert old.attach(generation=2) == Status(StatusCode.DENIED, 0, "a newer endpoint has this name")


def test_the_same_attach_again_starts_nothing_anew() -> None:  # 6.2
    relay = Relay(trace=True)
    client = Peer(relay).attached()
    client.push()
    first = client.attach()
    assert isinstance(first, Attached)
    assert client.attach() == first
    assert [record.event for record in relay.records].count(TraceEvent.ATTACHED) == 1


def test_every_arrival_and_every_end_counts() -> None:
    relay = Relay()
    for seed in (1, 2, 3):
        Peer(relay, seed=seed).attached()
    for seed in (4, 5, 6):
        Peer(relay, "exits", seed, "exit", is_exit=True).attached()
    assert (relay.counters.attaches_fresh, relay.counters.attachments_replaced) == (6, 2)
    relay.advance(301 * SECOND)
    assert relay.counters.attachments_expired == 4
    assert relay.switch.stats().attachments == 0


def test_an_attachment_lives_from_its_first_attach() -> None:  # 9.6
    relay = Relay()
    assert isinstance(Peer(relay).attach(), Attached)
    relay.advance(299 * SECOND)
    assert relay.switch.stats().attachments == 1


def test_the_trace_says_who_came_and_why_he_went() -> None:
    relay = Relay(trace=True)
    Peer(relay).attached()
    Peer(relay, "exits", 4, "exit", is_exit=True).attached()
    Peer(relay, "exits", 5, "exit", is_exit=True).attached()
    relay.advance(301 * SECOND)
    told = [
        (record.event, record.text, record.reason)
        for record in relay.records
        if record.event in (TraceEvent.ATTACHED, TraceEvent.DETACHED)
    ]
    assert told == [
        (TraceEvent.ATTACHED, "ann", ""),
        (TraceEvent.ATTACHED, "exits", ""),
        (TraceEvent.ATTACHED, "exits", ""),
        (TraceEvent.DETACHED, "exits", TraceReason.GONE),
        (TraceEvent.DETACHED, "ann", TraceReason.USER_TIMEOUT),
        (TraceEvent.DETACHED, "exits", TraceReason.USER_TIMEOUT),
    ]


def test_a_new_generation_does_not_replace_its_own_endpoint() -> None:  # 6.2, 6.4
    relay = Relay()
    _, exit_ = client_and_exit(relay, name="exit")
    assert isinstance(exit_.attach(generation=2), Attached)
    assert relay.counters.attachments_replaced == 0
    assert exit_.push() == []
