"""A packet type that the protocol gets later: no module of the relay lists the types, so none has to change."""

import enum
import importlib.util
from types import ModuleType

import pytest

import tunnel.wire
from tests.servlet.queues import Box
from tunnel.wire import Packet, PacketType, frame_of
from tunnel_servlet.switch.mailboxes import queues

NEW = 1 + max(PacketType)


def queues_of_a_protocol_with_one_more_type(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return the module of the queues, executed again while `PacketType` has a member that it lacks now."""
    members = [*((kind.name, kind.value) for kind in PacketType), ("NEW", NEW)]
    monkeypatch.setattr(tunnel.wire, "PacketType", enum.IntEnum("PacketType", members))
    spec = importlib.util.spec_from_file_location("queues_again", queues.__file__)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.interpreted
def test_1_4_a_new_packet_type_needs_no_change_of_the_relay(monkeypatch: pytest.MonkeyPatch) -> None:
    module, box = queues_of_a_protocol_with_one_more_type(monkeypatch), Box()
    queue = module.RouteQueue(7, box.budget, box.config, box.counters, lambda queue: None)
    frames = [frame_of(Packet(NEW, 1, 7, sequence, b"new")) for sequence in (1, 2, 3)]
    assert [queue.put_control(frame) for frame in frames] == [True, True, True]
    left = [queue.pop_control(1 << 20) for _ in frames]
    assert [frame.sequence for frame in left if frame is not None] == [1, 2, 3]
