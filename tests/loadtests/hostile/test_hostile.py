"""The attackers attack, the victim is measured, and the limit decides."""

import json

import pytest

from loadtests.hostile.__main__ import Figures, main
from loadtests.hostile.attacker import ATTACKS


@pytest.mark.timeout(300)
def test_two_users_are_measured_side_by_side(capsys: pytest.CaptureFixture[str]) -> None:
    only = [word for attack in ATTACKS for word in ("--only", attack)]
    assert main([*only, "--seconds", "0.3", "--limit-ms", "20000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["attack"] for each in found] == ["alone", *ATTACKS]
    assert all(each["pings"] and each["rss_bytes"] and not each["failure"] for each in found)


def test_a_slow_or_lost_victim_is_a_failure() -> None:
    assert Figures("alone", 1, 10, 20, 5, 1).is_good(10)
    assert not Figures("alone", 1, 11, 20, 5, 1).is_good(10)
    assert not Figures("alone", 1, 1, 1, 5, 1, "lost").is_good(10)
