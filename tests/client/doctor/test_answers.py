"""The doctor's words about answers, most of which are not the relay's."""

import pytest

from tests.client.doctor.prober import answered, foreign
from tunnel.carriers.probes.probe import Reply
from tunnel_client.doctor.answers import advice_for, described, sender_of, tallied

SQUID = {"server": "squid/5.7", "x_squid_error": "ERR_ACCESS_DENIED 0"}
TOO_BIG = {"server": "squid/5.7", "x_squid_error": "ERR_TOO_BIG 0"}


@pytest.mark.parametrize(
    ("reply", "text", "advice"),
    [
        (foreign(403, "<h1>", **SQUID), "HTTP 403 from Squid 5.7", "its access rules (ACL) refuse this request"),
        (foreign(403, "<h1>", **TOO_BIG), "HTTP 403 from Squid 5.7", "a rule about the size of answers"),
        (foreign(503, "<h1>", server="squid/5.7"), "HTTP 503 from Squid 5.7", "a proxy cannot reach the relay"),
        (
            foreign(403, "<h1>", via="1.1 h (tinyproxy/1.11)"),
            "HTTP 403 from tinyproxy 1.11",
            "its filter or its access",
        ),
        (foreign(403, "Blocked by Privoxy"), "HTTP 403 from Privoxy", "it blocks the relay's address"),
        (foreign(429, "<h1>", server="nginx"), "HTTP 429 from nginx", "too many requests come"),
        (foreign(406, "by Mod_Security"), "HTTP 406 from ModSecurity", "a rule of this web application firewall"),
        (foreign(403, "Sign in"), "HTTP 403, Sign in", "it may be a login or block page"),
        (foreign(204), "HTTP 204, an empty body", "a device answers in place of the relay"),
        (foreign(418, "teapot"), "HTTP 418, teapot", "check the URL, including its path"),
        (foreign(200, server="nginx/1.2"), "HTTP 200 from nginx 1.2, an empty body", "it may be a login or block page"),
        (foreign(302, location="http://l.invalid/?t=1"), "HTTP 302, which leads to http://l.invalid/", "check the URL"),
        (foreign(401), "HTTP 401, an empty body", "it wants credentials of its own"),
    ],
)
def test_answers_that_are_not_the_relays_are_named_and_explained(reply: Reply, text: str, advice: str) -> None:
    assert described(reply) == text
    assert advice_for(reply).startswith(advice)


def test_other_outcomes_are_described() -> None:
    assert described(answered("damaged", 200, "too short")) == "HTTP 200, damaged: too short"
    assert described(answered("status", 404)) == "HTTP 404 from the relay"
    assert described(answered("status", 413, "too large")) == "HTTP 413 from the relay, too large"
    assert described(Reply("lost", 0, "no answer within 1 s", 1.0, {})) == "no answer within 1 s"
    assert sender_of(foreign(200)) == ""


def test_failures_are_counted_by_their_description_the_most_frequent_first() -> None:
    replies = [foreign(200), foreign(502, server="nginx"), foreign(502, server="nginx")]
    assert tallied(replies) == "2 times HTTP 502 from nginx, an empty body; HTTP 200, an empty body"
    assert tallied([]) == ""
