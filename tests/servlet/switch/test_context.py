"""The context that all parts of the switch share."""

from tunnel.traces.record import TraceEvent, TraceReason, TraceRecord
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.model import Attention
from tunnel_servlet.switch.registry import Registry


def test_an_attachment_is_woken_once() -> None:
    attention = Attention()
    attachment = Registry(SwitchContext(SwitchConfig(), None), attention).add(b"1", "ann", is_exit=False)
    attention.wake(attachment)
    attention.wake(attachment)
    assert list(attention.awake) == [attachment]
    assert attachment.is_awake


def test_trace_records_name_the_node() -> None:
    records: list[TraceRecord] = []
    context = SwitchContext(SwitchConfig(node="relay-7"), records.append)
    context.trace(TraceEvent.ROUTE_BOUND, 5, connection=1, peer=2, text="ann")
    context.trace(TraceEvent.PACKET_DROPPED, 6, reason=TraceReason.FULL, packet_type=4, sequence=9)
    assert records == [
        TraceRecord(time_us=5, node="relay-7", event="route_bound", connection=1, peer=2, text="ann"),
        TraceRecord(time_us=6, node="relay-7", event="packet_dropped", reason="full", packet_type=4, sequence=9),
    ]
    SwitchContext(SwitchConfig(), None).trace(TraceEvent.ROUTE_BOUND, 5)
