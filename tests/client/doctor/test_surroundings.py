"""The settings of this machine about proxies."""

from pathlib import Path

import pytest

from tunnel_client.doctor.findings import Report, Verdict
from tunnel_client.doctor.surroundings import examine_proxy
from tunnel_client.login_file import write_login
from tunnel_client.settings import RelaySettings
from tunnel_client.stored_login import Login


def found(choice: str | None = "env", proxy: str = "") -> dict[str, str]:
    report = Report("")
    settings = RelaySettings("https://relay.example", proxy=choice, user_timeout=1.0)
    examine_proxy(report, settings, proxy)
    assert all(finding.verdict in (Verdict.OK, Verdict.NOTE) for finding in report.findings)
    return {finding.step: finding.text for finding in report.findings}


@pytest.mark.usefixtures("home")
def test_the_source_of_the_proxy_setting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert found() == {"proxy": "none: no variable of the environment names one"}
    assert found(None) == {"proxy": "none: --proxy none says so"}
    assert found("http://p:1", "http://p:1") == {"proxy": "http://p:1, which --proxy names"}
    monkeypatch.setenv("ALL_PROXY", "http://p:1")
    assert found(proxy="http://p:1") == {"proxy": "http://p:1, which the variable ALL_PROXY names"}
    monkeypatch.setenv("https_proxy", "http://p:1")
    assert found(proxy="http://p:1") == {"proxy": "http://p:1, which the variable https_proxy names"}
    monkeypatch.setenv("no_proxy", "*")
    assert found() == {"proxy": "none: the variable no_proxy excludes this relay from https_proxy"}
    monkeypatch.delenv("https_proxy")
    monkeypatch.delenv("ALL_PROXY")
    assert found() == {"proxy": "none: no variable of the environment names one"}


@pytest.mark.usefixtures("home")
def test_a_proxy_that_the_login_stored_is_distinguished_from_the_argument() -> None:
    write_login(Login("https://relay.example", proxy="http://p:1"))
    assert found("http://p:1", "http://p:1") == {"proxy": "http://p:1, which `tunnel login` stored"}
    assert found("http://q:1", "http://q:1") == {"proxy": "http://q:1, which --proxy names"}
    write_login(Login("https://relay.example", proxy="none"))
    assert found(None) == {"proxy": "none: `tunnel login` stored this choice"}


def test_proxy_scripts_are_named_but_not_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = home / "config"
    config.mkdir()
    (config / "kioslaverc").write_text("[Proxy Settings]\nProxyType=2\nProxy Config Script=http://wpad/wpad.dat\n")
    assert "(http://wpad/wpad.dat)" in found()["proxy script"]
    (config / "kioslaverc").write_text("ProxyType=1\nProxy Config Script=http://wpad/wpad.dat\n")
    assert "proxy script" not in found()
    monkeypatch.setenv("auto_proxy", "http://me:secret@wpad/x")
    assert "(auto_proxy=wpad/x)" in found()["proxy script"]
    monkeypatch.delenv("auto_proxy")
    monkeypatch.setenv("HTTP_PROXY", "http://wpad/proxy.pac")
    assert "(HTTP_PROXY=http://wpad/proxy.pac)" in found()["proxy script"]


@pytest.mark.parametrize(
    ("script", "text"),
    [
        ("case $4 in mode) echo \"'auto'\";; *) echo \"'http://wpad/'\";; esac", "(http://wpad/)"),
        ("case $4 in mode) echo \"'auto'\";; *) echo \"''\";; esac", "(found on the network)"),
        ("echo \"'none'\"", ""),
    ],
)
def test_proxy_scripts_in_the_settings_of_gnome_are_named(
    home: Path, monkeypatch: pytest.MonkeyPatch, script: str, text: str
) -> None:
    program = home / "gsettings"
    program.write_text(f"#!/bin/sh\nset -- x $@\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{home}:/usr/bin:/bin")
    monkeypatch.setenv("DBUS_SESSION_BUS_ADDRESS", "unix:path=/nowhere")
    assert text in found().get("proxy script", "")
    program.write_text("not a program")
    assert "proxy script" not in found()
    monkeypatch.delenv("DBUS_SESSION_BUS_ADDRESS")
    assert "proxy script" not in found()
