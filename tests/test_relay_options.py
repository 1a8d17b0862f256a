"""An option of all commands that attach is declared once, and named in few files of the product."""

import argparse
import ast
import os
from collections import defaultdict
from pathlib import Path
from typing import get_type_hints

import pytest

from tunnel.attaching import AttachKeywords, AttachOptions, attach
from tunnel.ground.relay_options import OPTIONS, RelayKeywords, RelayOptions, from_environment, given_by, given_of
from tunnel.process.gateway_options import given_keywords

ROOT = Path(__file__).parent.parent
PRODUCT = ("tunnel", "servlet/tunnel_servlet", "client/tunnel_client")
FILES_MAX = 3  # its declaration, its place on the command line, its effect
# Words that name other things, too: to count them would say nothing.
COMMON = {"token", "proxy", "ca", "headers", "carrier", "links", "encryption"}
ELSEWHERE = {  # where an option is told of, or its word stands for another thing
    "cert": {
        *(f"client/tunnel_client/doctor/{name}.py" for name in ("examination", "next_step")),
        "client/tunnel_client/cli/broker/install_unit.py",
        "client/tunnel_client/settings.py",
        "tunnel/process/unit_files.py",
        "tunnel/carriers/dialing/asking.py",
    },
    "insecure_http": {"client/tunnel_client/doctor/next_step.py", "client/tunnel_client/settings.py"},
    "hostname": {
        *(f"tunnel/carriers/dialing/{name}.py" for name in ("challenges", "dialing", "names")),
        "client/tunnel_client/cli/signing_in.py",
    },
    "pull_interval": {"tunnel/attached_endpoint.py", "tunnel/status.py"},
    "user_timeout": {
        "client/tunnel_client/cli/up/supervisor.py",
        "tunnel/attaching.py",
        "tunnel/traces/record.py",
    },
    "peer_key": {
        "client/tunnel_client/cli/service_key.py",
        "client/tunnel_client/doctor/target_step.py",
        *(f"tunnel/encryption/{name}.py" for name in ("connection", "tls", "transport")),
    },
}


def named_in(source: str, words: set[str]) -> set[str]:
    """Return those of the words that a source names: as a name, an attribute, a parameter or argument, or as a text."""
    found = set()
    for node in ast.walk(ast.parse(source)):
        for field in ("id", "attr", "arg", "name", "value"):
            text = getattr(node, field, None)
            if isinstance(text, str):
                found.add(text.removeprefix("--").replace("-", "_"))
    return found & words


def test_an_option_is_named_in_few_files() -> None:
    files = defaultdict(set)
    words = OPTIONS.keys() - COMMON
    for path in (path for top in PRODUCT for path in (ROOT / top).rglob("*.py")):
        for word in named_in(path.read_text(), words):
            files[word].add(str(path.relative_to(ROOT)))
    counted = {word: sorted(files[word] - ELSEWHERE.get(word, set())) for word in words}
    assert {word: found for word, found in counted.items() if len(found) > FILES_MAX} == {}
    assert files.keys() == words


@pytest.mark.parametrize(
    "source", ["sni", "x.sni", "f(sni=1)", "def f(sni): 1", "x: int\nsni: int", "'--sni'", "['sni']"]
)
def test_a_name_is_found_wherever_it_stands(source: str) -> None:
    assert named_in(source, {"sni"}) == {"sni"}
    assert named_in(source.replace("sni", "snit"), {"sni"}) == set()


def test_the_keywords_are_the_options() -> None:
    hints = get_type_hints(RelayKeywords)
    assert hints == get_type_hints(RelayOptions)
    assert list(hints) == list(OPTIONS)
    assert set(AttachKeywords.__annotations__) == set(AttachOptions.__dataclass_fields__)


def test_what_was_not_said_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    for option in OPTIONS.values():
        monkeypatch.delenv(option.variable, raising=False)
    assert from_environment(os.environ) == {}
    nothing = argparse.Namespace(proxy="", ca=None, insecure_http=False, headers=[], peer_key=[])
    assert given_keywords(nothing) == given_by(nothing) == {}
    assert given_by(argparse.Namespace(pull_interval=0.0, links=1, sni="x")) == {
        "pull_interval": 0.0,
        "links": 1,
        "sni": "x",
    }
    assert given_of({"token": None, "proxy": None, "ca": None, "sni": "", "insecure_http": False, "peer_key": ()}) == {
        "token": None,
        "proxy": None,
    }


def test_variables_give_options(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_PEER_KEY", "a b")
    monkeypatch.setenv("TUNNEL_CARRIER", "poll")
    monkeypatch.setenv("TUNNEL_SNI", "no option of the environment")
    monkeypatch.setenv("TUNNEL_INSECURE_HTTP", "yes")
    assert from_environment(os.environ) == {"peer_key": ("a", "b"), "carrier": "poll"}
    monkeypatch.setenv("TUNNEL_INSECURE_HTTP", "1")
    assert (
        from_environment(os.environ, flags_only=True) == given_keywords(argparse.Namespace()) == {"insecure_http": True}
    )


@pytest.mark.parametrize("wrong", [{"links": 0}, {"pull_interval": -1}, {"carrier": "dove"}])
def test_a_wrong_number_or_word_is_an_error_at_once(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match=r"links|pull interval|carrier"):
        attach("https://relay.example", **wrong)  # type: ignore[arg-type]
