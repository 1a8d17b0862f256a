"""The edge of a route, S and B, and when it is announced (PROTOCOL 2.10, 7.12, 9.4)."""

from tunnel_servlet.switch.mailboxes.edges import EdgeLedger

KIB = 1 << 10


def ledger(initial: int = 64 * KIB) -> EdgeLedger:
    made = EdgeLedger(initial, 4 * KIB)
    made.start_at(100)
    return made


def test_2_10_s_is_the_newest_packet_that_left_and_b_the_room_beyond_it() -> None:
    found = ledger()
    assert found.room(64 * KIB) == (100, 64 * KIB)
    found.let_go(102, KIB)
    found.late_bytes += KIB
    assert found.room(64 * KIB) == (102, 63 * KIB)
    found.let_go(101, KIB)
    assert found.room(64 * KIB) == (102, 64 * KIB)
    found.late_bytes = 65 * KIB
    assert found.room(64 * KIB) == (102, 0)


def test_1_6_sequence_numbers_wrap() -> None:
    found = EdgeLedger(64 * KIB, 4 * KIB)
    found.start_at(2**32 - 1)
    key = found.key(3)
    assert key == 2**32 + 3
    found.let_go(key, 1)
    assert found.room(10) == (3, 10)


def test_6_6_the_first_packet_of_a_resumed_route_sets_its_position() -> None:
    found = EdgeLedger(64 * KIB, 4 * KIB)
    key = found.key(7000)
    assert found.room(10) == (6999, 10)
    found.let_go(key, 5)
    assert found.passed_bytes == 5


def test_9_4_an_edge_is_due_when_a_quarter_of_the_limit_has_left() -> None:
    found = ledger()
    found.let_go(101, 4 * KIB - 1)
    assert not found.has_moved()
    found.let_go(102, 12 * KIB)
    assert found.has_moved()
    assert not found.is_due(64 * KIB)
    found.let_go(103, 1)
    assert found.is_due(64 * KIB)
    found.on_announced(64 * KIB, 64 * KIB)
    assert not found.has_moved()
    assert not found.is_due(64 * KIB)


def test_9_4_an_edge_announced_below_the_limit_is_remembered() -> None:
    found = ledger()
    found.on_announced(10, 64 * KIB)
    assert found.is_smaller
    found.on_announced(64 * KIB, 64 * KIB)
    assert not found.is_smaller
    found.named_dropped(5)
    assert found.is_smaller
    found.let_go(101, 16 * KIB)
    assert found.is_due(16 * KIB)


def test_an_edge_has_moved_after_exactly_one_step() -> None:
    ledger = EdgeLedger(100, 10)
    ledger.start_at(0)
    ledger.let_go(1, 9)
    assert not ledger.has_moved()
    ledger.let_go(2, 1)
    assert ledger.has_moved()


def test_after_a_drop_the_senders_room_is_the_waiting_bytes() -> None:  # 9.3
    ledger = EdgeLedger(100, 0)
    ledger.named_dropped(80)
    assert not ledger.is_due(100)
    ledger.named_dropped(75)
    assert ledger.is_due(100)


def test_late_packets_that_wait_take_up_part_of_the_limit() -> None:
    ledger = EdgeLedger(20, 0)
    ledger.late_bytes = 60
    assert not ledger.is_due(100)
    ledger.late_bytes = 55
    assert ledger.is_due(100)


def test_negative_room_counts_as_zero() -> None:
    ledger = EdgeLedger(0, 0)
    ledger.start_at(0)
    ledger.late_bytes = 150
    ledger.let_go(1, 24)
    assert not ledger.is_due(100)
    ledger.let_go(2, 1)
    assert ledger.is_due(100)
