"""More of services: versions that are equal."""

from tests.servlet.support import Peer, Relay, listen_state


def test_the_version_that_is_up_does_not_take_itself_down() -> None:  # 2.8
    relay = Relay()
    client = Peer(relay).attached()
    client.push(listen_state(version=2), listen_state(version=2, up=False))
    assert relay.switch.stats().listeners == 1
