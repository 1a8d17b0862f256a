"""Which redirects come from a server that answers in TLS alone."""

import pytest
from yarl import URL

from tunnel.carriers.dialing.redirects import is_to_https

ASKED = URL("http://relay.example:80/base/exchange")


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("https://relay.example/base/exchange", True),
        ("https://RELAY.example:8443/base/exchange", True),
        ("//relay.example/base/exchange", False),
        ("http://relay.example/base/exchange", False),
        ("https://login.example/base/exchange", False),
        ("https://relay.example/login", False),
        ("/login", False),
        ("https://[", False),
        ("", False),
    ],
)
def test_it_leads_to_the_same_host_and_path(location: str, found: bool) -> None:
    assert is_to_https(ASKED, location) is found


def test_who_has_asked_in_tls_needs_no_advice() -> None:
    assert not is_to_https(ASKED.with_scheme("https"), "https://relay.example/base/exchange")
