"""The challenges of proxies and our answers to them: vectors of RFC 7616 (3.9.1), and headers as proxies send them."""

import base64
import hashlib
import sys
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunnel.carriers.dialing.challenges import Challenge, Introduction, parse_challenges
from tunnel.system.installing import install_command


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
        (["Weird {x: 1}, Basic realm=x"], [Challenge("weird"), Challenge("basic", {"realm": "x"})]),
        (['Weird "a, Digest b" c, Basic realm=x'], [Challenge("weird"), Challenge("basic", {"realm": "x"})]),
        (["@, Basic realm=x"], [Challenge("basic", {"realm": "x"})]),
        # An invalid parameter is left out, and does not end its challenge.
        (
            ['Digest nonce="n", opaque=, algorithm==, qop=auth, Basic realm=x'],
            [Challenge("digest", {"nonce": "n", "qop": "auth"}), Challenge("basic", {"realm": "x"})],
        ),
        # A challenge that begins with an invalid part gives its parameters to no other challenge.
        (
            ["Digest nonce=1, {W} a=1, nonce=2", "nonce=3", "Basic realm=x"],
            [Challenge("digest", {"nonce": "1"}), Challenge("basic", {"realm": "x"})],
        ),
        # Everything after an open quote is quoted text.
        (['Weird a="b, Basic realm=x', "NTLM"], [Challenge("weird"), Challenge("ntlm")]),
    ],
)
def test_headers_are_read(headers: list[str], found: list[Challenge]) -> None:
    assert parse_challenges(headers) == found


@given(st.text(alphabet=st.characters(exclude_characters='"')))
def test_a_header_without_quotes_hides_no_later_challenge(start: str) -> None:
    assert parse_challenges([f"{start}, Basic realm=x"])[-1] == Challenge("basic", {"realm": "x"})


@pytest.mark.parametrize("odd", ["\udcff", "a\rb", "a\nX-Injected: b", "\0", "\x7f"])
def test_our_answer_is_one_line_whatever_the_proxy_sends(odd: str) -> None:
    challenges = parse_challenges(
        [f'Digest realm="{odd}", nonce="{odd}", opaque="{odd}", algorithm="MD5{odd}"', f"X{odd}"]
    )
    introduction = Introduction("http://proxy", "proxy", "ann", "secret")
    introduction.on_challenged(challenges, None)
    for text in (introduction.header("CONNECT", "relay:443") or "", introduction.advice(challenges)):
        assert text.encode("latin-1").isascii()
        assert text.isprintable()


def introduced(*challenges: Challenge, user: str = "Mufasa", password: str = "Circle of Life") -> Introduction:
    introduction = Introduction("http://proxy", "proxy", user, password)
    assert introduction.header("GET", "/") is None
    assert introduction.on_challenged(list(challenges), None)
    return introduction


OWN = "f2/wE4q74E6zIJEtWaHKaf5wv/H5QzzpXusqGemxURZJ"
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
def test_the_vectors_of_rfc_7616_are_reproduced(algorithm: str, response: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tunnel.carriers.dialing.challenges.secrets.token_hex", lambda _: OWN)
    introduction = introduced(Challenge("digest", {**RFC_7616, "algorithm": algorithm}))
    header = introduction.header("GET", "/dir/index.html")
    assert header is not None
    assert f'response="{response}"' in header
    assert f'cnonce="{OWN}", qop=auth, nc=00000001' in header
    assert "nc=00000002" in (introduction.header("GET", "/") or "")
    stale = Challenge("digest", {**RFC_7616, "algorithm": algorithm, "nonce": "another", "stale": "true"})
    assert introduction.on_challenged([stale], header)
    assert "nc=00000001" in (introduction.header("GET", "/") or "")  # it counts the uses of one nonce


def test_the_strongest_supported_scheme_is_chosen() -> None:
    weak, strong = Challenge("digest", {"nonce": "1"}), Challenge("digest", {"nonce": "2", "algorithm": "SHA-256"})
    introduction = introduced(Challenge("basic"), weak, strong)
    assert 'nonce="2"' in (introduction.header("GET", "/") or "")
    foreign = [Challenge("digest", {"nonce": "1", "algorithm": "SHA-512-256"}), Challenge("digest"), weak]
    assert 'nonce="1"' in (introduced(*foreign).header("GET", "/") or "")
    body = Challenge("digest", {"nonce": "1", "qop": "auth-int"})
    assert (introduced(body, Challenge("basic")).header("GET", "/") or "").startswith("Basic ")


def test_basic_is_answered_beside_a_challenge_that_cannot_be_read() -> None:
    introduction = introduced(*parse_challenges(["Weird {x: 1}, Basic realm=x"]))
    assert (introduction.header("GET", "/") or "").startswith("Basic ")


def test_a_rejected_password_is_not_retried_but_a_stale_nonce_is_replaced() -> None:
    for other in (Challenge("digest", {"nonce": "2"}), Challenge("basic")):
        introduction = introduced(Challenge("digest", {"nonce": "1"}))
        assert not introduction.on_challenged([other], introduction.header("GET", "/"))
    introduction = introduced(Challenge("digest", {"nonce": "1"}))
    sent = introduction.header("GET", "/")
    assert introduction.on_challenged([Challenge("digest", {"nonce": "2", "stale": "true"})], sent)
    assert 'nonce="2"' in (introduction.header("GET", "/") or "")
    basic = introduced(Challenge("basic"))
    assert not basic.on_challenged([Challenge("basic")], basic.header("GET", "/"))


def test_without_a_user_no_answer_is_attempted() -> None:
    introduction = Introduction("http://proxy", "proxy")
    assert not introduction.on_challenged([Challenge("digest", {"nonce": "1"}), Challenge("basic")], None)
    assert introduction.header("GET", "/") is None
    assert introduction.conversation() is None


def test_quotes_in_a_user_name_stay_within_its_field() -> None:
    """Otherwise the rest of the name would be read as further fields of the header."""
    user = 'me", uri="/other\\'
    introduction = introduced(Challenge("digest", {"nonce": '1"', "realm": 'a "b"', "opaque": '"'}), user=user)
    (answer,) = parse_challenges([introduction.header("GET", "/") or ""])
    assert answer.parameters["username"] == user
    assert answer.parameters["uri"] == "/"
    assert [answer.parameters[name] for name in ("nonce", "realm", "opaque")] == ['1"', 'a "b"', '"']


@pytest.fixture
def known_nonce(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make our own nonce known; it must be made of 16 random bytes."""
    monkeypatch.setattr("tunnel.carriers.dialing.challenges.secrets.token_hex", {16: OWN}.__getitem__)


def md5(*parts: str) -> str:
    return hashlib.md5(":".join(parts).encode(), usedforsecurity=False).hexdigest()


@pytest.mark.usefixtures("known_nonce")
def test_an_answer_has_every_field_in_its_form() -> None:
    answer = introduced(Challenge("digest", {**RFC_7616, "algorithm": "MD5"})).header("GET", "/dir/index.html")
    assert answer == (
        f'Digest username="Mufasa", realm="{RFC_7616["realm"]}", nonce="{RFC_7616["nonce"]}", uri="/dir/index.html", '
        f'response="8ca523f5e9506fed4657c9700eebdbec", opaque="{RFC_7616["opaque"]}", algorithm=MD5, cnonce="{OWN}", '
        "qop=auth, nc=00000001"
    )


@pytest.mark.usefixtures("known_nonce")
def test_an_answer_without_qop_is_that_of_rfc_2069() -> None:
    secret = md5("Mufasa", "", "Circle of Life")
    response = md5(secret, "1", md5("GET", "/"))
    answer = introduced(Challenge("digest", {"nonce": "1"})).header("GET", "/")
    assert answer == f'Digest username="Mufasa", realm="", nonce="1", uri="/", response="{response}"'


@pytest.mark.usefixtures("known_nonce")
def test_an_answer_of_a_session_binds_the_password_to_both_nonces() -> None:
    secret = md5(md5("Mufasa", "r", "Circle of Life"), "1", OWN)
    for qop, fields in (("", ""), ("auth", ", qop=auth, nc=00000001")):
        middle = ("00000001", OWN, "auth") if qop else ()
        response = md5(secret, "1", *middle, md5("GET", "/"))
        asked = {"realm": "r", "nonce": "1", "qop": qop, "algorithm": "md5-SESS"}
        assert introduced(Challenge("digest", asked)).header("GET", "/") == (
            f'Digest username="Mufasa", realm="r", nonce="1", uri="/", response="{response}", algorithm=md5-SESS, '
            f'cnonce="{OWN}"{fields}'
        )


def test_a_count_goes_on_when_the_same_challenge_is_seen_on_another_connection() -> None:
    """A proxy takes a count that it has seen before for a replay."""
    challenge = Challenge("digest", {"nonce": "1", "qop": "auth"})
    introduction = introduced(challenge)
    assert "nc=00000001" in (introduction.header("GET", "/") or "")
    assert introduction.on_challenged([challenge], None)
    assert "nc=00000002" in (introduction.header("GET", "/") or "")


@pytest.mark.parametrize(
    "parameters",
    [{"nonce": "1", "algorithm": "SHA-512-256"}, {}, {"nonce": ""}, {"nonce": "1", "qop": "auth-int"}],
)
def test_a_digest_that_we_cannot_compute_is_not_chosen(parameters: dict[str, str]) -> None:
    introduction = Introduction("http://proxy", "proxy", "Mufasa", "Circle of Life")
    assert not introduction.on_challenged([Challenge("digest", parameters)], None)


def test_a_proxy_that_names_no_scheme_is_answered_with_basic() -> None:
    answer = base64.b64encode(b"Mufasa:Circle of Life").decode()
    assert introduced().header("GET", "/") == f"Basic {answer}"


# schemes of several messages


@pytest.fixture
def spnego(monkeypatch: pytest.MonkeyPatch) -> list[tuple[tuple[object, ...], dict[str, object]]]:
    """Replace pyspnego by a module that only records the arguments of each client."""
    made: list[tuple[tuple[object, ...], dict[str, object]]] = []
    module = SimpleNamespace(client=lambda *arguments, **options: made.append((arguments, options)))
    monkeypatch.setitem(sys.modules, "spnego", module)
    return made


def talking(user: str = "Mufasa", password: str = "Circle of Life") -> Introduction:
    return Introduction("http://proxy", "proxy.example", user, password, can_talk=True)


ALL = [Challenge("pigeon"), Challenge("basic"), Challenge("digest", {"nonce": "1"})]


@pytest.mark.parametrize(
    ("offers", "name"),
    [
        ([*ALL, Challenge("ntlm"), Challenge("negotiate")], "Negotiate"),
        ([*ALL, Challenge("ntlm")], "NTLM"),
    ],
)
def test_a_conversation_is_preferred_where_it_is_possible(
    spnego: list[tuple[tuple[object, ...], dict[str, object]]], offers: list[Challenge], name: str
) -> None:
    introduction = talking()
    assert introduction.on_challenged(offers, None)
    assert introduction.header("CONNECT", "relay:443") is None
    conversation = introduction.conversation()
    assert conversation is not None
    assert conversation[0] == name
    options = {"hostname": "proxy.example", "service": "HTTP", "protocol": name.lower()}
    assert spnego == [(("Mufasa", "Circle of Life"), options)]
    silent = Introduction("http://proxy", "proxy.example", "Mufasa", "Circle of Life")
    assert silent.on_challenged(offers, None)
    assert (silent.header("GET", "/") or "").startswith("Digest ")
    assert silent.conversation() is None


def test_without_a_user_only_negotiate_may_use_a_ticket_of_the_system(
    spnego: list[tuple[tuple[object, ...], dict[str, object]]],
) -> None:
    introduction = talking("", "")
    assert not introduction.on_challenged([Challenge("ntlm")], None)
    assert introduction.on_challenged([Challenge("ntlm"), Challenge("negotiate")], None)
    assert introduction.conversation() is not None
    assert spnego[0][0] == (None, None)


def test_without_pyspnego_there_is_no_conversation(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "spnego", None)  # the import fails
    assert not talking().on_challenged([Challenge("negotiate"), Challenge("ntlm")], None)


# advice


BASIC, PIGEON, TALKS = Challenge("basic", {"realm": "office"}), Challenge("pigeon"), Challenge("negotiate")
GIVE = "write http://USER:PASSWORD@HOST:PORT into a file of mode 0600, and give --proxy @FILE"
CHECK = "but did not accept user Mufasa: check user and password (special characters as %XX)"


@pytest.mark.parametrize(
    ("offers", "user", "text"),
    [
        ([BASIC], "", f"asks for Basic (office): {GIVE}"),
        ([], "", f"asks for credentials, but does not name a scheme: {GIVE}"),
        ([Challenge("digest"), BASIC], "", f"asks for Digest, Basic (office): {GIVE}"),
        ([TALKS, BASIC], "", f"asks for Negotiate, Basic (office): {GIVE}"),
        ([BASIC, BASIC], "Mufasa", f"asks for Basic (office), {CHECK}"),
        ([PIGEON, BASIC], "Mufasa", f"asks for pigeon, Basic (office), {CHECK}"),
        ([], "Mufasa", f"asks for credentials, but does not name a scheme, {CHECK}"),
        (
            [PIGEON],
            "Mufasa",
            "asks for pigeon, which tunnel does not support: ask the proxy's operator for Basic or Digest",
        ),
        (
            [TALKS, Challenge("ntlm")],
            "Mufasa",
            "asks for Negotiate, NTLM, which works only with a relay at https://: use such a URL",
        ),
        ([TALKS], "", "asks for Negotiate, which works only with a relay at https://: use such a URL"),
    ],
)
def test_advice_names_what_the_proxy_asks_for_and_what_to_do(offers: list[Challenge], user: str, text: str) -> None:
    assert Introduction("http://proxy", "proxy", user).advice(offers) == f"http://proxy {text}"


def test_advice_names_the_missing_extra_where_only_conversations_are_offered(
    spnego: list[tuple[tuple[object, ...], dict[str, object]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert talking().advice([TALKS]) == f"http://proxy asks for Negotiate, {CHECK}"
    monkeypatch.setitem(sys.modules, "spnego", None)
    advice = f"which needs the package pyspnego: install it with {install_command('pyspnego')}"
    assert talking().advice([TALKS]) == f"http://proxy asks for Negotiate, {advice}"
    assert talking().advice([TALKS, BASIC]) == f"http://proxy asks for Negotiate, Basic (office), {CHECK}"


@pytest.mark.parametrize(
    ("user", "sent", "challenges", "is_refusal"),
    [
        ("me", "Basic bWU6", [Challenge("basic")], True),
        ("me", "Digest username=", [Challenge("digest", {"nonce": "n"})], True),
        ("me", "Digest username=", [Challenge("digest", {"nonce": "n", "stale": "true"})], False),
        ("me", "NTLM TlRM", [Challenge("ntlm")], True),
        ("me", None, [Challenge("pigeon")], False),  # it never saw the password
        ("", "Negotiate YII=", [Challenge("negotiate")], False),  # a ticket of the operating system
    ],
)
def test_only_the_password_counts_as_refused(
    user: str, sent: str | None, challenges: list[Challenge], is_refusal: bool
) -> None:
    introduction = Introduction("http://proxy", "proxy", user, "wrong", can_talk=True)
    introduction.on_challenged(challenges, sent)
    assert bool(introduction.refusal) is is_refusal
    assert "wrong" not in introduction.refusal


def accepted(*challenges: Challenge) -> tuple[Introduction, str]:
    """Return an introduction that the proxy has accepted once, and the header of its next request."""
    introduction = introduced(*challenges)
    introduction.on_passed(introduction.header("GET", "/"))
    sent = introduction.header("GET", "/")
    assert sent is not None
    return introduction, sent


@pytest.mark.parametrize("scheme", ["basic", "digest"])
def test_a_password_that_was_accepted_is_not_refused_by_one_answer(scheme: str) -> None:
    """Some proxies answer 407 now and then: the caller asks again."""
    challenge = Challenge(scheme, {"nonce": "1"})
    introduction, sent = accepted(challenge)
    for _ in range(3):
        assert not introduction.on_challenged([challenge], sent)
        assert introduction.refusal == ""
        assert introduction.header("GET", "/") is not None


def test_after_such_an_answer_the_next_request_answers_the_new_challenge() -> None:
    """Another proxy of a pool has nonces of its own, and perhaps another scheme."""
    introduction, sent = accepted(Challenge("digest", {"nonce": "1"}))
    assert not introduction.on_challenged([Challenge("digest", {"nonce": "2"})], sent)
    assert 'nonce="2"' in (introduction.header("GET", "/") or "")
    assert not introduction.on_challenged([Challenge("basic")], introduction.header("GET", "/"))
    assert (introduction.header("GET", "/") or "").startswith("Basic ")


def test_a_request_without_the_password_does_not_show_that_it_is_accepted() -> None:
    introduction = introduced(Challenge("basic"))
    introduction.on_passed(None)
    introduction.on_challenged([Challenge("basic")], introduction.header("GET", "/"))
    assert introduction.refusal


def test_a_refused_password_is_in_no_later_header() -> None:
    for challenge in (Challenge("basic"), Challenge("digest", {"nonce": "1"})):
        introduction = introduced(challenge)
        assert not introduction.on_challenged([challenge], introduction.header("GET", "/"))
        assert introduction.header("GET", "/") is None
        assert not introduction.on_challenged([challenge], None)
        assert not introduction.on_challenged([Challenge("digest", {"nonce": "2"})], None)
        assert introduction.header("GET", "/") is None
    talks = talking()
    talks.on_challenged([Challenge("negotiate")], None)
    talks.on_challenged([Challenge("negotiate")], "Negotiate YII=")
    assert talks.refusal
    assert talks.conversation() is None
