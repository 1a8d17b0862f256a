"""Spellings of a relay's URL: the same relay, or another one."""

import pytest

from tunnel.ground.relay_urls import is_same_relay, relay_key


@pytest.mark.parametrize(
    ("spelling", "key"),
    [
        ("https://relay.example", "https://relay.example"),
        ("https://relay.example//", "https://relay.example"),
        ("HTTPS://Relay.EXAMPLE:443/", "https://relay.example"),
        ("https://relay.example:0443", "https://relay.example"),
        ("https://relay.example:", "https://relay.example"),
        ("https://Relay.example./Base/", "https://relay.example./Base"),
        ("http://LOCALHOST:80", "http://localhost"),
        ("http://LOCALHOST.:8080", "http://localhost.:8080"),
        ("HTTPS://BÜCHER.example:443/", "https://BÜCHER.example:443"),
        ("https://b%C3%BCcher.example/", "https://b%C3%BCcher.example"),
        ("http://[0:0:0:0:0:0:0:1]:08080", "http://[::1]:8080"),
        ("https://[2001:DB8::0:1]:443/x", "https://[2001:db8::1]/x"),
        ("http://127.0.0.1:80", "http://127.0.0.1"),
    ],
)
def test_spellings_of_a_relay_have_one_form(spelling: str, key: str) -> None:
    assert relay_key(spelling) == key
    assert relay_key(key) == key
    assert is_same_relay(spelling, key)


@pytest.mark.parametrize(
    "other",
    [
        "http://relay.example",
        "https://relay.example:80",
        "https://relay.example:8443",
        "https://relay.example/base",
        "https://relay.example/Base",
        "https://relay.example?x",
        "https://relay.example#x",
        "https://other@relay.example",
        "https://relay.example@evil.example",
        "https://relay.example:443@evil.example",
        "https://evil.example/relay.example",
        "https://evil.example\\@relay.example",
        "https://relay.example.evil.example",
        "https://relay.example..",
        "https://relay.example:443443",
        "https:relay.example",
        "relay.example",
        "//relay.example",
        "https://",
        "",
    ],
)
def test_two_users_a_secret_for_one_relay_is_not_for_another_origin(other: str) -> None:
    assert not is_same_relay("https://relay.example", other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("http://localhost", "http://127.0.0.1"),
        ("http://relay", "http://relay."),  # a resolver may complete the first of them
        ("http://relay.ns", "http://relay.ns."),  # this one too, with ndots > 1
        ("http://localhost", "http://localhost."),
        ("https://relay.example", "https://relay.example."),
        ("https://ΝΕΟΣ-RELAY.example", "https://νεος-relay.example"),  # IDNA makes two names of them
        ("https://BÜCHER.example", "https://bücher.example"),  # only IDNA would join them
        ("http://10.0.0.1", "http://10.0.0.1."),
        ("http://[::1]", "http://[::1%25eth0]"),
        ("http://[::1:zz]", "http://[::1]"),
        ("http://[:::]", "http://[::]"),
        ("https://a:B@relay.example", "https://a:b@relay.example"),
        ("ftp://relay.example:443", "ftp://relay.example"),
    ],
)
def test_names_that_only_a_lookup_would_join_are_two_relays(one: str, other: str) -> None:
    assert not is_same_relay(one, other)
