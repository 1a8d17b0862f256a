"""The page of metrics, beside what tests of a running relay show."""

from tunnel_servlet.switch.stats import Counters, Undelivered
from tunnel_servlet.web.metrics import render_metrics
from tunnel_servlet.web.reloading import Reloads


def test_packets_that_were_not_delivered_are_shown_by_reason() -> None:
    page = render_metrics(None, Reloads(), Counters(packets_ended=3, packets_dropped_full=5), [])
    name = "tunnel_packets_undelivered_total"
    found = [line for line in page.splitlines() if line.startswith(name)]
    assert len(found) == len(Undelivered)
    assert f'{name}{{reason="ended"}} 3' in found
    assert f'{name}{{reason="full"}} 5' in found
    assert f'{name}{{reason="no_route"}} 0' in found
    assert page.count(f"# TYPE {name} counter\n") == 1
