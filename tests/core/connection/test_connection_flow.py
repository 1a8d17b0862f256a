"""A connection whose buffers are full: how much write() takes, when Writable and Flushed come, window updates."""

from tests.core.solo import Solo
from tunnel.core import EndpointConfig, Flushed, Writable
from tunnel.wire import PacketType

DATA, CLOSE, FINISH, ACK = PacketType.DATA, PacketType.CLOSE, PacketType.FINISH, PacketType.ACK
OPTION, CONNECT, ABORT, SHUTDOWN = PacketType.OPTION, PacketType.CONNECT, PacketType.ABORT, PacketType.SHUTDOWN


def test_writable_waits_until_enough_room_is_free() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=4096)).opened()
    connection = solo.connection
    connection.write(bytes(5000), solo.now)
    packets = solo.out(size=8192)
    assert [packet.size for packet in packets] == [1048] * 4
    solo.ack(3, window=4096)
    assert solo.events() == [Writable(connection.id)]
    connection.write(bytes(2000), solo.now)
    solo.out(size=8192 - 1024)
    solo.ack(3, window=4096)
    assert Writable(connection.id) in solo.events()


def test_two_users_the_send_buffer_grows_for_a_claimed_window_only_as_far_as_the_budget_grants() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=1000, budget_bytes=300_000)).opened()
    window, budget = solo.connection.sender.window, solo.endpoint.budget
    before = budget.granted_bytes
    solo.ack(window=2**31)
    assert (window.buffer_bytes_max, budget.granted_bytes) == (1000, before)  # nothing is written yet
    assert solo.connection.write(bytes(2000), solo.now) == 1000
    solo.ack(window=2**31)
    assert window.buffer_bytes_max == 1000 + 300_000 - before
    assert budget.granted_bytes == 300_000
    assert solo.connection.write(bytes(30_000), solo.now) == 30_000
    solo.ack(window=0)
    assert budget.granted_bytes == 300_000  # what is buffered stays charged
    solo.connection.abort(solo.now)
    assert budget.granted_bytes == 0


def test_the_send_buffer_follows_the_peers_window_but_not_beyond_our_own_limit() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=1000)).opened()
    window = solo.connection.sender.window
    solo.ack(window=5000)
    assert window.buffer_bytes_max == 1000
    solo.connection.write(bytes(2000), solo.now)
    solo.ack(window=5000)
    assert window.buffer_bytes_max == 5000
    assert solo.connection.write(bytes(9000), solo.now) == 4000
    solo.ack(window=2**31)
    assert window.buffer_bytes_max == 16 * 2**20
    packets = solo.out(size=1 << 20)
    solo.ack(len(packets) - 1, window=10)
    assert window.buffer_bytes_max == 1000


def test_flushed_follows_the_last_acknowledgement() -> None:
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    solo.out()
    solo.ack(1)
    assert solo.events() == []
    solo.ack()
    assert solo.events() == [Flushed(solo.connection.id)]
    solo.ack()
    assert solo.events() == []


def test_a_flush_probes_when_the_bytes_still_to_be_written_have_left() -> None:  # 4.17
    solo = Solo().opened()
    solo.connection.write(b"abc", solo.now)
    assert solo.types() == [DATA]
    solo.connection.flush(waiting_bytes=3)
    assert solo.types() == []
    solo.connection.write(b"def", solo.now)
    assert solo.types() == [DATA, PacketType.PROBE]


def test_write_returns_how_much_it_took_and_writable_comes_when_a_quarter_is_free() -> None:
    solo = Solo(EndpointConfig(send_buffer_bytes_max=4000)).opened()
    connection = solo.connection
    assert connection.write(bytes(3000), solo.now) == 3000
    assert connection.write(bytes(3000), solo.now) == 1000
    assert connection.write(b"x", solo.now) == 0
    assert connection.write(b"", solo.now) == 0  # writes nothing; Writable is still to come
    solo.out(size=8 * 999)
    connection.sender.window.acknowledge(connection.sender.window.oldest, [])
    solo.ack(window=0)
    assert solo.events() == [Writable(connection.id), Flushed(connection.id)]
    assert connection.unacknowledged_bytes == 0
    connection.write(b"x", solo.now)
    solo.out()
    solo.ack()
    assert solo.events() == [Flushed(connection.id)]
