"""The check of invariants counts again and finds wrong counts."""

import pytest

from tests.servlet.support import Peer, Relay, bound, connect, data, listen_state
from tunnel_servlet.switch.invariants import InvariantError, check


def test_a_busy_switch_passes_the_check() -> None:
    relay = Relay()
    client, exit_ = bound(relay)
    client.push(data(11, 22, 101), connect(12), listen_state())
    client.push(connect(13, resume=True, destination=5, endpoint_id=Peer(relay, seed=9).identity))
    exit_.pull(lane=1)
    relay.switch.check_invariants()


def test_a_miscounted_byte_is_found() -> None:
    relay = Relay()
    client, _ = bound(relay)
    switch = relay.switch
    attachment = switch._registry.by_id[client.identity]
    attachment.mailbox.budget.held += 1
    with pytest.raises(InvariantError, match="bytes are counted as held"):
        check(switch._context, switch._attention, switch._registry, switch._routes)
