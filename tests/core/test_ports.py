"""The assumptions about a carrier of which nothing is known yet."""

from tunnel.core.constants import NEVER_US
from tunnel.core.ports import CarrierView
from tunnel.core.send.window import NO_EDGE


def test_the_assumptions_are_those_of_a_carrier_without_a_relay() -> None:
    view = CarrierView()
    assert (view.lanes, view.pull_interval_us) == (1, 0)
    assert (view.initial_edge_bytes, view.absent_since_us) == (NO_EDGE, NEVER_US)
