"""What proxies ask, and what they are answered: vectors of RFC 7616 (3.9.1), and headers as they come."""

import pytest

from tunnel.carriers.challenges import Challenge, Introduction, parse_challenges


@pytest.mark.parametrize(
    ("headers", "found"),
    [
        ([], []),
        (["Basic realm=plain"], [Challenge("basic", {"realm": "plain"})]),
        (['BASIC Realm = "a, \\"b\\""'], [Challenge("basic", {"realm": 'a, "b"'})]),
        (["Negotiate", "NTLM"], [Challenge("negotiate"), Challenge("ntlm")]),
        (["Negotiate, NTLM , ,Basic"], [Challenge("negotiate"), Challenge("ntlm"), Challenge("basic")]),
        (["NTLM TlRMTVNTUAACAAAA=="], [Challenge("ntlm", {}, "TlRMTVNTUAACAAAA==")]),
        (
            ['Digest nonce="n", qop="auth,auth-int", stale=TRUE, Basic realm=""'],
            [
                Challenge("digest", {"nonce": "n", "qop": "auth,auth-int", "stale": "TRUE"}),
                Challenge("basic", {"realm": ""}),
            ],
        ),
        (['realm="of nobody"'], []),
        (['"?', "\x00", "Basic ="], [Challenge("basic")]),
    ],
)
def test_headers_are_read(headers: list[str], found: list[Challenge]) -> None:
    assert parse_challenges(headers)[: len(found)] == found


def introduced(*challenges: Challenge, user: str = "Mufasa", password: str = "Circle of Life") -> Introduction:
    introduction = Introduction("http://proxy", "proxy", user, password)
    assert introduction.header("GET", "/") is None
    assert introduction.challenged(list(challenges), None)
    return introduction


RFC_7616 = {
    "realm": "http-auth@example.org",
    "qop": "auth, auth-int",
    "nonce": "7ypf/xlj9XXwfDPEoM4URrv/xwf94BcCAzFZH4GiTo0v",
    "opaque": "FQhe/qaU925kfnzjCev0ciny7QMkPqMAFRtzCUYo5tdS",
}


@pytest.mark.parametrize(
    ("algorithm", "response"),
    [
        ("MD5", "8ca523f5e9506fed4657c9700eebdbec"),
        ("SHA-256", "753927fa0e85d155564e2e272a28d1802ca10daf4496794697cf8db5856cb6c1"),
    ],
)
def test_the_vectors_of_rfc_7616(algorithm: str, response: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
    monkeypatch.setattr("tunnel.carriers.challenges.secrets.token_hex", lambda _: own)
    introduction = introduced(Challenge("digest", {**RFC_7616, "algorithm": algorithm}))
    header = introduction.header("GET", "/dir/index.html")
    assert header is not None
    assert f'response="{response}"' in header
    assert f'cnonce="{own}", qop=auth, nc=00000001' in header
    assert "nc=00000002" in (introduction.header("GET", "/") or "")


def test_the_strongest_way_is_chosen() -> None:
    weak, strong = Challenge("digest", {"nonce": "1"}), Challenge("digest", {"nonce": "2", "algorithm": "SHA-256"})
    introduction = introduced(Challenge("basic"), weak, strong)
    assert 'nonce="2"' in (introduction.header("GET", "/") or "")
    foreign = [Challenge("digest", {"nonce": "1", "algorithm": "SHA-512-256"}), Challenge("digest"), weak]
    assert 'nonce="1"' in (introduced(*foreign).header("GET", "/") or "")
    body = Challenge("digest", {"nonce": "1", "qop": "auth-int"})
    assert (introduced(body, Challenge("basic")).header("GET", "/") or "").startswith("Basic ")


def test_a_wrong_password_is_not_tried_again_and_an_old_nonce_is() -> None:
    introduction = introduced(Challenge("digest", {"nonce": "1"}))
    sent = introduction.header("GET", "/")
    assert not introduction.challenged([Challenge("digest", {"nonce": "2"})], sent)
    assert not introduction.challenged([Challenge("basic")], sent)
    assert introduction.challenged([Challenge("digest", {"nonce": "2", "stale": "true"})], sent)
    assert 'nonce="2"' in (introduction.header("GET", "/") or "")
    basic = introduced(Challenge("basic"))
    assert not basic.challenged([Challenge("basic")], basic.header("GET", "/"))


def test_without_a_user_nothing_is_tried() -> None:
    introduction = Introduction("http://proxy", "proxy")
    assert not introduction.challenged([Challenge("digest", {"nonce": "1"}), Challenge("basic")], None)
    assert introduction.header("GET", "/") is None
    assert introduction.conversation() is None
