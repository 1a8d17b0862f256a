"""Clause 3.6 from end to end: bytes written before ACCEPTED arrive, whatever window the acceptor starts with."""

from tests.core.pair import SERVICE, Pair
from tunnel.core import EndpointConfig
from tunnel.core.constants import EARLY_BYTES_MAX


def test_early_data_fits_an_acceptor_whose_first_window_is_smaller() -> None:
    small = EndpointConfig(window_bytes_min=16 * 1024, window_bytes_start=20_000)
    pair = Pair(EndpointConfig(), small, batch_bytes=1024 * 1024)
    pair.b.endpoint.listen(SERVICE.host, 1, pair.now)
    connection = pair.a.endpoint.connect(SERVICE, pair.now)
    data = bytes(range(256)) * (EARLY_BYTES_MAX // 256)
    assert connection.write(data, pair.now) == len(data)
    pair.settle()
    (accepted,) = pair.b.endpoint.connections.values()
    assert bytes(accepted.read(len(data), pair.now)) == data
    assert connection.snapshot().packets_resent == 0
