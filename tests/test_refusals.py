"""The errors for refusals: what they propose, and how they name targets."""

import pytest

from tunnel.exchange import AttachRefused
from tunnel.ground.special_targets import target_text
from tunnel.refusals import refusal_error
from tunnel.wire import StatusCode


@pytest.mark.parametrize(
    ("code", "whom"), [(StatusCode.DENIED, "ask the operator of the relay"), (0, "or of the proxy in front of it")]
)
def test_only_a_refusal_that_may_come_from_a_proxy_names_its_operator(code: int, whom: str) -> None:
    assert str(refusal_error(AttachRefused(403, code, "no", False), "http://relay.example")).endswith(whom)


@pytest.mark.parametrize(
    ("host", "port", "shown"),
    [
        ("::1", 8000, "[::1]:8000"),
        ("fe80::1%eth0", 22, "[fe80::1%eth0]:22"),
        ("10.0.0.1", 22, "10.0.0.1:22"),
        ("udp:dns", 53, "udp:dns:53"),
        ("reports", None, "reports"),
        ("unix:/a:b", 1, "unix:/a:b"),
        ("srv:_a._tcp.b", 1, "srv/_a._tcp.b"),
    ],
)
def test_a_target_is_named_as_people_write_it(host: str, port: int | None, shown: str) -> None:
    assert target_text(host, port) == shown
