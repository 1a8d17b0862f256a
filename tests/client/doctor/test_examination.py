"""The doctor on faulty paths: its findings, its advice and its exit codes."""

from __future__ import annotations

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from loadtests.faultproxy import Flip, IdleCut, Status
from tests.client.doctor.rig import doctor, hurting, quick, tls_relay
from tests.client.rig import TOKEN, Rig, greet
from tests.support.certificates import TLS
from tests.support.proxies import UpstreamProxy
from tunnel_client.cli.main import main
from tunnel_client.doctor.findings import Report, render_choice
from tunnel_client.login_file import write_login
from tunnel_client.stored_login import Login

__all__ = ["doctor", "quick"]


def test_repeats_small_limits_of_bodies_and_stripped_upgrades_are_noted(rig: Rig, doctor: Any) -> None:
    code, found, report = doctor(hurting(rig, duplicate=1.0, limit_bytes=100_000, no_upgrade=True))
    assert code == 0
    assert found["repeats"][0] == "note"
    assert found["repeats"][2]["repeated"] > 0
    assert found["body limit"][2] == {"body_bytes": 65536, "status": 413}
    assert "a hop refuses bodies of 128 KiB (HTTP 413" in found["body limit"][1]
    assert found["link"][:1] == ("note",)
    assert report["summary"].startswith("the tunnel works here; see the ")


def test_altered_bodies_and_too_small_limits_are_problems(rig: Rig, doctor: Any) -> None:
    code, found, _ = doctor(hurting(rig, flip=Flip(1.0, "request")))
    assert code == 7
    assert "requests reach it damaged: HTTP 400" in found["relay"][1]
    _, found, _ = doctor(hurting(rig, flip=Flip(1.0, "response")))
    assert found["relay"][0] == "problem"
    code, found, _ = doctor(hurting(rig, limit_bytes=1000))
    assert (code, found["body limit"][0], found["link"][0]) == (0, "note", "ok")  # the link carries everything
    code, found, report = doctor(hurting(rig, limit_bytes=1000, no_upgrade=True))
    assert "not even requests of 1.5 KiB pass (HTTP 413" in found["body limit"][1]
    assert found["body limit"][0] == "problem"
    assert code == 3
    assert report["summary"].startswith("the tunnel does not work here")


def test_a_hop_that_cuts_idle_connections_is_noted(rig: Rig, doctor: Any) -> None:
    code, found, _ = doctor(hurting(rig, idle_cut=IdleCut(100_000)))
    assert code == 0
    assert found["hold limit"][0] == "note"
    assert found["idle limit"][0] == "note"


@pytest.mark.parametrize("options", [{}, {"no_upgrade": True, "limit_bytes": 100_000}])
def test_a_relay_keeps_no_attachment_of_an_examination(rig: Rig, doctor: Any, options: dict[str, Any]) -> None:
    operator = rig.running.relay.host.switch.operator
    before = set(operator.attachments())
    doctor(hurting(rig, **options))
    ours = [one for one in operator.attachments() if one not in before]
    assert [one.identity for one in ours if not one.is_leaving] == []


def test_a_long_look_says_first_how_long_it_takes(
    rig: Rig, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("tunnel_client.doctor.long_steps.LONG_S", 1.0)
    monkeypatch.setattr("tunnel_client.doctor.long_steps.BEAT_S", 0.1)
    assert main(["doctor", "--watch", "0.3", "--relay", hurting(rig, idle_cut=IdleCut(100_000)), "--long"]) == 0
    said = capsys.readouterr()
    assert said.err.startswith("tunnel: --long watches the path for 1 s; the whole examination takes about ")
    assert "HTTP connections were cut, after about " in said.out
    assert "a link was cut after " in said.out
    assert main(["doctor", "--watch", "0.3", "--relay", rig.url, "--long"]) == 0
    out = capsys.readouterr().out
    assert "passed in 1 s; no HTTP connection was cut" in out
    assert "a link stayed open for 1 s" in out


@pytest.mark.parametrize(
    ("status", "code", "text"),
    [
        (302, 3, "redirects to http://elsewhere.invalid/: sign in there with a browser"),
        (404, 3, "check the URL, including its path"),
        (503, 3, "a proxy cannot reach the relay"),
    ],
)
def test_an_answer_that_is_not_a_relays_is_explained(rig: Rig, doctor: Any, status: int, code: int, text: str) -> None:
    found_code, found, _ = doctor(hurting(rig, statuses=(Status(status, 1.0),)))
    assert found_code == code
    assert text in found["relay"][1]


def test_a_wrong_token_is_a_problem_with_code_4(rig: Rig, doctor: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", TOKEN[:-2] + "xx")
    code, found, report = doctor(rig.url)
    assert code == 4
    assert "answers, but does not know the token: check it, or ask" in found["relay"][1]
    assert report["next"] == f"tunnel login {rig.url} --token-file FILE"


def test_targets_that_are_denied_or_not_reached_are_explained(rig: Rig, doctor: Any) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        for target, code, reason, text in (
            ("example.com:80", 5, "denied", "ask the operator of the relay for a rule"),
            (f"127.0.0.1:{nobody.getsockname()[1]}", 6, "refused", "check that it listens there"),
            ("nowhere.invalid:80", 6, "name_not_resolved", "nowhere.invalid has no address"),
            ("reports", 6, "no_such_service", "no endpoint listens under this name"),
        ):
            found_code, found, report = doctor(rig.url, target)
            assert (found_code, found["target"][2]["reason"]) == (code, reason)
            assert text in found["target"][1]
            assert report["next"]


def test_missing_encryption_that_is_required_is_a_problem(rig: Rig, doctor: Any) -> None:
    port = rig.serve(greet)
    code, found, report = doctor(rig.url, f"127.0.0.1:{port}", "--encryption", "require")
    assert (code, found["encryption"][0]) == (4, "problem")
    assert report["summary"].startswith("the tunnel works, but the target is not encrypted")
    assert "login" not in report["next"]


def test_a_proxy_that_wants_a_password_is_explained_and_the_password_not_shown(
    rig: Rig, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    proxy: UpstreamProxy = rig.enter(UpstreamProxy(user="me:secret"))
    monkeypatch.setenv("http_proxy", f"http://127.0.0.1:{proxy.port}")
    code, found, report = doctor(rig.url)
    assert code == 4
    assert "which the variable http_proxy names" in found["proxy"][1]
    assert report["next"] == f"tunnel doctor --relay {rig.url} --proxy @FILE"
    monkeypatch.setenv("http_proxy", f"http://me:secret@127.0.0.1:{proxy.port}")
    code, found, report = doctor(rig.url)
    assert code == 0
    assert "secret" not in json.dumps(report)


# The doctor looks at the certificate on a TLS connection, and may end while the connection still waits for the
# server's close_notify: asyncio then warns when the connection is garbage-collected. For a user, the process ends with
# the doctor.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_issuer_of_a_certificate_is_named_and_judged(
    home: Path, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Rig(tls_relay()) as rig:
        url = rig.url.replace("http:", "https:")
        code, found, _ = doctor(url, "--ca", str(TLS / "ca.pem"))
        assert code == 0
        issuer = found["TLS"][2]["issuer"]
        assert found["TLS"][0] == "note"
        assert f"the certificate comes from {issuer}, which is no public authority" in found["TLS"][1]
        code, found, report = doctor(url)
        assert code == 3
        assert found["TLS"][0] == "problem"
        assert found["TLS"][2] == {"issuer": issuer, "trusted": False, "kind": "unknown-issuer"}
        assert report["next"] == f"tunnel doctor --relay {url} --ca FILE"
        monkeypatch.setattr("tunnel_client.doctor.certificate_steps.INTERCEPTORS", [issuer.lower()])
        _, found, _ = doctor(url, "--ca", str(TLS / "ca.pem"))
        assert "TLS is decrypted on the path by" in found["TLS"][1]
        _, found, _ = doctor(rig.url)
        assert found["relay"][0] == "problem"  # plain HTTP to a TLS port
        code, found, _ = doctor(f"https://127.0.0.1:{rig.serve(greet)}")
        assert "answers, but not in TLS): write http:// instead of https://" in found["relay"][1]


def test_an_unknown_name_is_distinguished_from_a_silent_relay(
    home: Path, doctor: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    code, found, _ = doctor("http://relay.invalid", "--insecure-http")
    assert (code, found["relay"][2]["kind"]) == (3, "name")
    monkeypatch.setattr("tunnel_client.doctor.relay_steps.ANSWER_S", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        code, found, _ = doctor(f"http://127.0.0.1:{silent.getsockname()[1]}")
    assert (code, found["relay"][2]["kind"]) == (3, "timeout")


def test_a_page_without_a_title_is_quoted_and_no_clock_is_judged_without_a_date(home: Path, doctor: Any) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 11\r\nConnection: close\r\n\r\nno\x1bthing  x")
        await writer.drain()
        writer.close()

    with Rig() as rig:
        code, found, _ = doctor(f"http://127.0.0.1:{rig.serve(answer)}")
    assert code == 3
    assert "(HTTP 200, no\\x1bthing x)" in found["relay"][1]
    assert found["clock"][0] == "not tried"


def test_an_invalid_url_is_a_usage_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--relay", "relay.example"]) == 2
    assert "is not a relay URL" in capsys.readouterr().err


def test_each_of_several_relays_is_examined(rig: Rig, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("1", "2"):
        (home / name).write_text(TOKEN)
        (home / name).chmod(0o600)
    nobody = "http://127.0.0.1:1"
    words = ["doctor", "--watch", "0.3", "--relay", nobody, "--relay", rig.url]
    words += ["--token-file", str(home / "1"), "--token-file", str(home / "2")]
    assert main(words) == 0
    said = capsys.readouterr().out
    refused = f"{nobody} cannot be used: nothing answers at {nobody} (the connection was refused)"
    assert said.endswith(f"\n\n{refused}\nnew connections would use {rig.url}\n")
    assert said.index(f"relay {nobody} (from --relay)") < said.index(f"relay {rig.url} (from --relay)")
    assert f"tunnel login {rig.url} --token-file {home / '2'} --add" in " ".join(said.split())
    assert main([*words[:5], "--relay", f"{nobody}/x", *words[7:]]) == 3
    assert capsys.readouterr().out.endswith("none of these relays can be used\n")
    assert main([*words, "--json"]) == 0
    found = json.loads(next(line for line in capsys.readouterr().out.splitlines() if line.startswith("[")))
    assert [(one["exit_code"], one["used"]) for one in found] == [(3, False), (0, True)]


def test_two_users_the_secrets_of_the_first_relay_are_proposed_for_no_other(
    rig: Rig, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("token", TOKEN), ("gate", "X-Gate: hush")):
        (home / name).write_text(text)
        (home / name).chmod(0o600)
    nobody = ["http://127.0.0.1:1", "http://127.0.0.1:1/x"]
    words = ["doctor", "--watch", "0.3", "--proxy", "none", "--carrier", "poll", "--header", f"@{home / 'gate'}"]
    for url, name in ((nobody[0], "token"), (rig.url, "token"), (nobody[1], "token")):
        words += ["--relay", url, "--token-file", str(home / name)]
    assert main([*words, "--hostname", "gate.example"]) == 0
    found = [" ".join(text.split()) for text in capsys.readouterr().out.split("next:")[1:]]
    file, gate = f"--token-file {home / 'token'}", f"--header @{home / 'gate'} --hostname gate.example"
    for said, told in zip(
        found,
        (
            f"tunnel doctor --relay {nobody[0]} {file} --proxy none {gate} --carrier poll relay ",
            f"tunnel login {rig.url} {file} --add --proxy none relay ",
            f"tunnel doctor --relay {nobody[1]} {file} --proxy none --carrier poll http",
        ),
        strict=True,
    ):
        assert said.startswith(told)


@pytest.mark.usefixtures("home")
def test_the_next_command_names_all_relays_when_several_are_used(
    rig: Rig, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TUNNEL_RELAY", "TUNNEL_TOKEN"):
        monkeypatch.delenv(name, raising=False)
    nobody = "http://127.0.0.1:1"
    write_login(Login(rig.url, token=TOKEN, proxy="none"), Login(nobody, token=TOKEN, proxy="none"))
    named = ["--relay", rig.url, "--relay", nobody]
    port = rig.serve(greet)
    main(["doctor", "--watch", "0.3", f"127.0.0.1:{port}", *named])
    said = " ".join(capsys.readouterr().out.split())
    assert f"127.0.0.1:{port} --relay {rig.url} --relay {nobody}" in said.partition("next: tunnel forward")[2]
    main(["doctor", "--watch", "0.3"])
    (found, _) = capsys.readouterr().out.split("relay http://127.0.0.1:1 (")
    assert "next:    tunnel doctor HOST:PORT\n" in found


def test_of_relays_that_work_the_first_would_be_used() -> None:
    reports = [Report("https://a"), Report("https://b"), Report("https://c", exit_code=5, summary="denied\x1b")]
    assert render_choice(reports).splitlines()[1:] == [
        "https://c cannot be used: denied\\x1b",
        "https://b would be used when those before it cannot be",
        "new connections would use https://a",
    ]
