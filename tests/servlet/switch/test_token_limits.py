"""Limits of single tokens: how many endpoints are attached with one at a time."""

from typing import Any

from tests.servlet.support import Peer, Relay
from tunnel.wire import Attached, Status, StatusCode
from tunnel_servlet.switch.model import Credential

TWO = Credential("11111111", 2)
ONE = Credential("22222222", 1)


def heard(relay: Relay, seed: int, credential: Credential, **fields: Any) -> Peer:
    """Return an endpoint that has attached and sent something."""
    peer = Peer(relay, seed=seed, credential=credential, **fields).attached()
    peer.push()
    return peer


def refusal(peer: Peer) -> Status:
    answer = peer.attach()
    assert isinstance(answer, Status)
    return answer


def test_an_endpoint_beyond_the_limit_of_its_token_is_asked_to_wait() -> None:
    relay = Relay()
    first, _ = heard(relay, 1, TWO), heard(relay, 2, TWO)
    full = refusal(Peer(relay, seed=3, credential=TWO))
    assert (full.code, full.retry_after_ms > 0) == (StatusCode.BUSY, True)
    assert full.text == "2 endpoint(s) are attached with this token, and it is for no more"
    assert isinstance(first.attach(generation=2), Attached)
    relay.advance(relay.config.attachment_timeout_us + 1)
    heard(relay, 3, TWO)


def test_two_users_the_limit_of_one_token_is_no_limit_of_another() -> None:
    relay = Relay()
    heard(relay, 1, ONE)
    heard(relay, 2, TWO)  # of the same user
    heard(relay, 3, Credential(ONE.token, 1), user="bob")
    heard(relay, 4, Credential())
    assert refusal(Peer(relay, seed=5, credential=ONE)).code == StatusCode.BUSY


def test_an_endpoint_that_replaces_one_of_its_name_needs_no_room() -> None:
    relay = Relay()
    older = heard(relay, 1, ONE, name="exit")
    heard(relay, 2, ONE, name="exit")
    assert older.status(older.send()).code == StatusCode.UNKNOWN
    assert relay.switch.stats().attachments == 1


def test_many_endpoints_that_would_replace_one_leave_one() -> None:
    """Each ATTACH is admitted because of the name, but only one of them may go on."""
    relay = Relay()
    heard(relay, 1, ONE, name="exit")
    others = [Peer(relay, seed=seed, name="exit", credential=ONE) for seed in (2, 3)]
    assert all(isinstance(other.attach(), Attached) for other in others)
    others[0].push()
    other_name = Peer(relay, seed=4, name="other", credential=ONE)
    assert refusal(other_name).code == StatusCode.BUSY
    others[1].push()
    assert others[0].status(others[0].send()).code == StatusCode.UNKNOWN


def test_endpoints_that_attach_before_any_was_heard_are_limited_when_they_are_heard() -> None:
    relay = Relay()
    both = [Peer(relay, seed=seed, credential=ONE) for seed in (1, 2)]
    assert all(isinstance(peer.attach(), Attached) for peer in both)
    both[0].push()
    assert both[1].status(both[1].send()).code == StatusCode.UNKNOWN
    assert refusal(both[1]).code == StatusCode.BUSY
    both[0].push()
