"""The person to ask when a target was denied: the operator of the relay, or that of the exit."""

from pathlib import Path

import pytest

from tests.servlet.rig import ANYWHERE, TOKENS, relay, settings
from tests.support.loops import in_loop
from tunnel import attach
from tunnel.ground.exit_codes import DENIED
from tunnel_client.doctor.findings import Report
from tunnel_client.doctor.next_step import conclude, rule_check
from tunnel_client.doctor.target_step import examine_target
from tunnel_client.places import Address
from tunnel_client.settings import find_settings
from tunnel_servlet.access.grants import Grant, GrantTable
from tunnel_servlet.access.rules import Ruleset, parse_rule
from tunnel_servlet.exit.dialer import Dialer

EXITS = Grant(exit=True)
TARGET = Address("127.0.0.1", 22)


@pytest.fixture(autouse=True)
def token(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TUNNEL_TOKEN", TOKENS["ann"])


async def denied(grant: Grant, exit_rules: str) -> tuple[str, Report]:
    """Examine the target with this grant at the relay and these rules at the exit. Return the text and the report."""
    dialer = Dialer(lambda user: Ruleset((parse_rule(exit_rules),)))
    async with relay(settings(grants=GrantTable({"ann": grant, "exits": EXITS}))) as running:
        url = f"http://{running.addresses[0]}"
        async with attach(url, token=TOKENS["exits"], exit_handler=dialer, proxy=None, linger=0.1):
            found = find_settings(relay=url, proxy=None)
            report = Report(url)
            await examine_target(report, found, TARGET)
    conclude(report, found, TARGET, {})
    assert report.exit_code == DENIED
    return report.findings[-1].text, report


@in_loop
async def test_the_rules_of_the_exit_send_nobody_to_the_operator_of_the_relay() -> None:
    text, report = await denied(ANYWHERE, "127.0.0.1:23")
    assert "under [users.ann] in the configuration of the exit" in text
    assert "tunnel-relay rule check" not in report.next
    assert report.next == "tunnel doctor 127.0.0.1:22"
    text = "the tunnel works, but the rules of the exit do not allow this target: its operator adds the line above"
    assert report.summary == text


@in_loop
async def test_the_rules_of_the_relay_are_checked_for_the_user_whom_it_names() -> None:
    text, report = await denied(Grant(connect=(parse_rule("127.0.0.1:23"),)), "127.0.0.0/8:*")
    assert "under [users.ann] in the relay's configuration" in text
    assert report.summary.endswith("finds out why with: tunnel-relay rule check ann 127.0.0.1:22 --resolve")
    assert report.next == "tunnel doctor 127.0.0.1:22"


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ('under [users."a b@c"] in the relay', "tunnel-relay rule check 'a b@c' 'unix:/a b' --resolve"),
        ("no rule allows it", "tunnel-relay rule check NAME 'unix:/a b' --resolve"),
        ("x; connect = [...] under [users.ann] in the configuration of the exit, or --allow x in its command", ""),
    ],
)
def test_the_user_is_the_one_whose_table_the_text_names(text: str, command: str) -> None:
    assert rule_check(text, "unix:/a b") == command
