"""The rules of an exit in a process of its own: for users and for everyone, not for groups."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.servlet.command.rig import process
from tests.servlet.rig import TOKENS, relay, settings
from tests.servlet.web.rig import Echo, hang_up, still_echoes
from tests.support.identity_provider import NOW_S, provided
from tests.support.loops import in_loop
from tests.support.targets import target
from tunnel import DeniedError, attach
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import parse_rule
from tunnel_servlet.access.sso import SsoTerms
from tunnel_servlet.command.exit_rules import ExitRules, load_rules
from tunnel_servlet.command.files import Overrides
from tunnel_servlet.config import ConfigError

SSO = '[sso]\nissuer = "https://login.example"\naudience = "tunnel"\n'
GROUPS = f'{SSO}[groups.staff]\nconnect = ["db.internal:5432"]\n[groups.ops]\nservices = ["news"]\n'
USER = '[users.ann]\nconnect = ["db.internal:5432"]\n'
EVERYONE = '[everyone]\nconnect = ["web.internal:80"]\n'


def reaches(rules: ExitRules, user: str, host: str, port: int) -> bool:
    return rules.rules_of(user).check_target(host, port).allowed


@pytest.mark.parametrize("allow", [(), ("web.internal:80",)])
def test_an_exit_says_that_the_rules_of_groups_have_no_effect(tmp_path: Path, allow: tuple[str, ...]) -> None:
    """The relay's own file is often the exit's, too, so it is not refused."""
    file = tmp_path / "relay.toml"
    file.write_text(GROUPS + USER + ("" if allow else EVERYONE))
    with capture_logs() as logs:
        rules = ExitRules(load_rules(str(file), Overrides(allow=allow)), str(file), Overrides(allow=allow))
    assert [(line["event"], line["log_level"], line["groups"]) for line in logs] == [
        ("groups_without_effect", "warning", ["ops", "staff"])
    ]
    assert "[everyone]" in logs[0]["text"]
    assert reaches(rules, "ann", "db.internal", 5432)
    assert reaches(rules, "sso:eve", "web.internal", 80)
    assert not reaches(rules, "sso:eve", "db.internal", 5432)


def test_an_exit_whose_file_has_rules_for_groups_alone_does_not_start(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(GROUPS)
    with pytest.raises(ConfigError, match=r"an exit does not learn the groups .* \[everyone\]"):
        load_rules(str(file), Overrides())


def test_an_exit_without_groups_in_its_file_says_nothing_of_them(tmp_path: Path) -> None:
    file = tmp_path / "relay.toml"
    file.write_text(USER)
    with capture_logs() as logs:
        load_rules(str(file), Overrides())
    assert logs == []
    file.write_text("")
    with pytest.raises(ConfigError, match="would dial nothing: name a file with -c, or targets with --allow"):
        load_rules(str(file), Overrides())


@in_loop
async def test_two_users_the_relay_enforces_the_rules_of_groups_for_an_exit_in_a_process_of_its_own(
    tmp_path: Path,
) -> None:
    """The exit's file is the relay's own: it may dial for everyone what the relay lets a group reach."""
    file = tmp_path / "exit.toml"
    async with target(Echo()) as allowed, target(Echo()) as other, provided() as provider:
        rule = f'connect = ["127.0.0.1:{allowed}"]'
        file.write_text(f"{SSO}[groups.staff]\n{rule}\n[groups.ops]\nservices = ['news']\n[everyone]\n{rule}\n")
        groups = {
            "staff": Grant(connect=(parse_rule("127.0.0.0/8:*"),)),
            "ops": Grant(services=("news",)),
        }
        grants = GrantTable({"exits": Grant(exit=True)}, groups=groups)
        sso = SsoTerms(issuer=provider.url, audience="tunnel")
        async with relay(settings(grants=grants, sso=sso, switch={"settle_us": 0})) as running:
            running.relay.clock = lambda: NOW_S
            url, tokens = (
                f"http://{running.addresses[0]}",
                [provider.token(), provider.token(sub="eve", groups=["ops"])],
            )
            words = ["exit", "--relay", url, "--proxy", "", "-c", str(file)]
            async with process(*words, TUNNEL_TOKEN=tokens[0]) as wrong:
                assert await wrong.ended() == 5
                assert any("users of the identity provider may not: use a token" in line for line in wrong.lines)
            more: dict[str, Any] = {"proxy": None, "linger": 0.1}
            async with (
                process(*words, TUNNEL_TOKEN=TOKENS["exits"]) as exit_,
                attach(url, token=tokens[0], **more) as ann,
                attach(url, token=tokens[1], **more) as eve,
            ):
                await exit_.line("groups_without_effect")
                await exit_.line("attached to")
                streams = await ann.open_connection("127.0.0.1", allowed)
                await still_echoes(streams)
                with pytest.raises(DeniedError, match=r"under \[groups\.ops\] in the relay"):
                    await eve.open_connection("127.0.0.1", allowed)
                with pytest.raises(DeniedError, match=r"under \[everyone\] in the configuration of the exit"):
                    await ann.open_connection("127.0.0.1", other)
                await hang_up(streams)
