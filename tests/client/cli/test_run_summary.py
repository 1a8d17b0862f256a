"""The sentence at the end of `tunnel run`."""

from ipaddress import IPv4Address

import pytest

from tunnel_client.cli.bypasses import Bypass, Remote
from tunnel_client.cli.run_summary import RunSummary

PSQL = Bypass(12, "psql", Remote("tcp", IPv4Address("127.0.0.1"), 5432), is_certain=True)
USE = "use `tunnel forward`, or `tunnel proxy 1080` and HTTPS_PROXY=http://127.0.0.1:1080"
SEEN = "at least 1 did not (the first: psql, process 12, to 127.0.0.1:5432)"
SENTENCES = {
    "3 connections went through the tunnel, none was seen to bypass it": {"opened": 3},
    "0 connections went through the tunnel, 2 more could not be opened, none was seen to bypass it": {"failed": 2},
    f"3 connections went through the tunnel, {SEEN}: for these {USE}": {"opened": 3, "certain": 1, "first": PSQL},
    "1 connection went through the tunnel, 2 did not that may lead to your --hosts (the first: psql, process 12, to "
    f"127.0.0.1:5432), those of grpcio, psycopg could not, since these connect in C: for these {USE}": {
        "opened": 1,
        "possible": 2,
        "first": PSQL,
        "clients": ["grpcio", "psycopg"],
    },
    f"no connection used the tunnel, and {SEEN}: for these {USE}": {"certain": 1, "first": PSQL},
    "no connection used the tunnel: app opened none to any host but this machine from Python. If it connected there, "
    f"another program or a library in C did: for these {USE}": {"has_python": True},
    "no connection used the tunnel: app started no Python process that could use it (app is not a Python program, or "
    f"Python ran with -I, -E or -S). If it connected, it bypassed the tunnel: for such programs {USE}": {},
}


@pytest.mark.parametrize(("sentence", "facts"), SENTENCES.items())
def test_the_sentence_says_what_happened_and_what_to_do(sentence: str, facts: dict[str, object]) -> None:
    assert str(RunSummary("app", ["*"], **facts)) == f"tunnel: {sentence}"  # type: ignore[arg-type]
