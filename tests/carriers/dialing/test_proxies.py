"""The choice of a proxy: a named one, or that of the environment. test_proxy_authentication.py has running proxies."""

import pytest
from yarl import URL

from tunnel.carriers.dialing.proxies import choose_proxy

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")


@pytest.mark.parametrize(
    ("no_proxy", "url", "bypassed"),
    [
        ("", "https://relay.example", False),
        ("*", "https://relay.example", True),
        ("other.example, .example", "https://relay.example", True),
        ("*.example", "https://relay.example", True),
        ("relay.example", "https://RELAY.example.", True),
        ("lay.example", "https://relay.example", False),
        ("relay.example:443", "https://relay.example", True),
        ("relay.example:444", "https://relay.example", False),
        ("10.0.0.0/8", "http://10.1.2.3", True),
        ("10.0.0.0/8", "http://11.1.2.3", False),
        ("10.1.2.3", "http://10.1.2.3:8080", True),
        ("fd00::/8", "http://[fd00::1]:8080", True),
        ("[fd00::1]:8080", "http://[fd00::1]:8080", True),
        ("[fd00::1]:81", "http://[fd00::1]:8080", False),
        ("10.0.0.0/99 :: ,,", "http://10.1.2.3", False),
        ("", "http://xxxx", False),
        ("other.example,relay.example", "https://relay.example", True),
        ("relay.example:", "https://relay.example", False),
        ("10.1.2.3/8", "http://10.9.9.9", True),
        ("[fd00:0::1]", "http://[fd00::1]", True),
        ("fd00::1:8080", "http://[fd00::1]:8080", False),
    ],
)
def test_the_variable_no_proxy_names_hosts_to_reach_directly(
    monkeypatch: pytest.MonkeyPatch, no_proxy: str, url: str, bypassed: bool
) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name.upper(), raising=False)
        monkeypatch.setenv(name, no_proxy if name == "no_proxy" else "http://proxy:3128")
    assert (choose_proxy(URL(url), "env") is None) == bypassed
    assert choose_proxy(URL(url), "http://named:1") is not None
    assert choose_proxy(URL(url), "none") is None
    assert choose_proxy(URL(url), "None") is None


def test_a_proxy_never_shows_its_password() -> None:
    proxy = choose_proxy(URL("https://relay"), "http://DOM%5Cme:p%3Aw%40@proxy:8080")
    assert proxy is not None
    assert (proxy.user, proxy.password) == ("DOM\\me", "p:w@")
    assert "p:w@" not in f"{proxy!r} {proxy} {proxy.url}"
    for wrong in ("socks5://me:hidden@h:1", "http://me:hidden@[1", "me:hidden@", "http://me:hid%0Aden@h:1"):
        with pytest.raises(ValueError, match="proxy") as caught:
            choose_proxy(URL("https://relay"), wrong)
        assert "hid" not in str(caught.value)


def test_the_proxy_variable_of_the_scheme_precedes_that_for_all(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    assert choose_proxy(URL("https://relay"), "env") is None
    monkeypatch.setenv("all_proxy", "http://all:1")
    assert repr(choose_proxy(URL("https://relay"), "env")) == "Proxy('http://all:1')"
    monkeypatch.setenv("https_proxy", "http://secure:2")
    assert repr(choose_proxy(URL("https://relay"), "env")) == "Proxy('http://secure:2')"
    assert repr(choose_proxy(URL("http://relay"), "env")) == "Proxy('http://all:1')"


def test_a_proxy_without_a_user_has_no_credentials() -> None:
    proxy = choose_proxy(URL("https://relay"), "proxy:8080")
    assert proxy is not None
    assert (str(proxy.url), proxy.user, proxy.password) == ("http://proxy:8080", "", "")


def test_a_password_may_contain_spaces_but_a_user_no_colon() -> None:
    proxy = choose_proxy(URL("https://relay"), "http://a%20b:c%20d@proxy:1")
    assert proxy is not None
    assert (proxy.user, proxy.password) == ("a b", "c d")
    with pytest.raises(ValueError, match=r"^the proxy 'proxy:1': its user has a colon"):
        choose_proxy(URL("https://relay"), "http://a%3Ab:c@proxy:1")


ESCAPES = ", with special characters of user and password as %XX"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("socks5://me:hid@den@h:1", "the proxy 'h:1' is not an HTTP proxy: write http://HOST:PORT"),
        ("http://[1", "the proxy 'http://[1' is not a URL: write http://HOST:PORT"),
        ("http://me:hid@den@[1", f"the proxy '[1' is not a URL: write http://HOST:PORT{ESCAPES}"),
        ("http://me:hid/den@h:1", f"the proxy 'h:1' is not a URL: write http://HOST:PORT{ESCAPES}"),
        ("http://me:12/den@h:1", f"the proxy 'h:1' is not a URL: write http://HOST:PORT{ESCAPES}"),  # me:12 is no host
        ("http://me:12?den@h:1", f"the proxy 'h:1' is not a URL: write http://HOST:PORT{ESCAPES}"),
        ("http://me:12#den@h:1", f"the proxy 'h:1' is not a URL: write http://HOST:PORT{ESCAPES}"),
        ("@px", "the proxy '@px' names a file, which only the option --proxy reads: give the URL of the proxy"),
    ],
)
def test_an_error_shows_the_proxy_without_a_password_that_holds_an_at_sign(text: str, message: str) -> None:
    with pytest.raises(ValueError, match="proxy") as caught:
        choose_proxy(URL("https://relay"), text)
    assert str(caught.value) == message
