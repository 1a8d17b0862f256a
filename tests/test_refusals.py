"""The errors for refusals: what they propose, and how they name targets."""

import pytest

from tunnel.errors import DeniedError, NotAuthenticatedError, ProxyPasswordError, TunnelError, UnreachableError
from tunnel.exchange import TO_HTTPS, AttachRefused
from tunnel.exchange.lanes.responses import judge
from tunnel.ground.special_targets import target_text
from tunnel.refusals import OR_WAIT, asked_again_s, name_error, refusal_error
from tunnel.wire import StatusCode

WHERE = "http://relay.example"


@pytest.mark.parametrize(
    ("event", "error"),
    [
        (AttachRefused(407, 0, "said"), ProxyPasswordError("said")),
        (AttachRefused(401, 0, "said"), NotAuthenticatedError("said: check the token")),
        (AttachRefused(401, 0, "get a new one"), NotAuthenticatedError("get a new one")),
        (AttachRefused(0, StatusCode.NOT_AUTHORISED, "ask the operator"), NotAuthenticatedError("ask the operator")),
        (AttachRefused(0, StatusCode.DENIED, "said"), DeniedError("said: ask the operator of the relay")),
        (
            AttachRefused(403, 0, "said"),
            DeniedError("said: ask the operator of the relay, or of the proxy in front of it"),
        ),
        (
            AttachRefused(415, 0, "said"),
            DeniedError("said: ask the operator of the relay, or of the proxy in front of it"),
        ),
        (
            AttachRefused(200, 0, "said", is_page=True),
            UnreachableError(f"{WHERE}: said: sign in there and try again{OR_WAIT}"),
        ),
        (
            AttachRefused(404, 0, "said"),
            UnreachableError(f"{WHERE}: said: check that the URL belongs to a tunnel relay{OR_WAIT}"),
        ),
        (AttachRefused(0, 0, "said"), UnreachableError("said")),
    ],
)
def test_a_refusal_says_what_to_do_and_names_no_proxy_if_the_relay_itself_answered(
    event: AttachRefused, error: TunnelError
) -> None:
    found = refusal_error(event, WHERE)
    assert (type(found), str(found)) == (type(error), str(error))


def test_a_refused_name_comes_with_what_would_allow_it_unless_the_relay_says_more() -> None:
    assert str(name_error("web", "taken")) == "web: taken"
    assert str(name_error("web", "")) == (
        'web: the relay does not allow this user to listen under this name: ask its operator to add "web" to the list '
        "`listen` under your user's name in the configuration"
    )


def test_the_same_settings_are_tried_again_the_later_the_less_likely_they_are_to_change() -> None:
    """Proxies lock accounts whose wrong password is repeated."""
    errors = ProxyPasswordError("no"), NotAuthenticatedError("no"), DeniedError("no"), UnreachableError("no")
    assert [asked_again_s(error) for error in errors] == [float("inf"), 300, 60, 15]


def test_a_redirect_to_tls_is_no_page_to_sign_in() -> None:
    outcome = judge(301, TO_HTTPS.encode(), 0)
    text = str(refusal_error(outcome.refuse(301), "http://relay.example"))
    assert text.endswith("not from a relay (the URL must begin with https://): it leads to the same place at https://")


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
