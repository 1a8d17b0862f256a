"""The attackers attack, the victim is measured, and limits decide whether the figures are good."""

import asyncio
import json
import math
import sys

import msgspec
import pytest

from loadtests.harness.processes import python_command
from loadtests.hostile import __main__ as hostile
from loadtests.hostile.__main__ import Figures, main
from loadtests.hostile.attacker import ATTACKS, NEIGHBOUR
from loadtests.hostile.broker_attacker import BROKER_ATTACKS, BROKER_NEIGHBOUR

SHORT = ("tiny-bodies", "unfinished-bodies")  # the others differ only in what they send
BROKER_SHORT = ("broker-calls", "broker-slow-requests")


@pytest.mark.timeout(300)
def test_the_victim_is_measured_beside_the_neighbour_and_two_attacks(capsys: pytest.CaptureFixture[str]) -> None:
    only = [word for attack in SHORT for word in ("--only", attack)]
    assert main([*only, "--seconds", "0.3", "--limit-ms", "20000", "--turn-ms", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["attack"] for each in found] == [NEIGHBOUR, *SHORT]
    assert all(each["pings"] and each["rss_bytes"] and each["turn_ms"] and not each["failure"] for each in found)


@pytest.mark.timeout(300)
def test_two_users_of_a_broker_are_measured_beside_the_neighbour_and_two_attacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = [word for attack in BROKER_SHORT for word in ("--only", attack)]
    assert main([*only, "--seconds", "0.3", "--limit-ms", "20000", "--turn-ms", "1000", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["attack"] for each in found] == [BROKER_NEIGHBOUR, *BROKER_SHORT]
    assert all(each["pings"] and each["rss_bytes"] and each["turn_ms"] and not each["failure"] for each in found)


def test_a_slow_or_lost_victim_a_long_turn_and_a_remnant_are_failures() -> None:
    mib = 1 << 20
    good = Figures("x", 1, 1, 10, 20, 1, 5, 20, 50, 60 * mib, 150 * mib, 82 * mib, 0, 0, 0)
    assert good.is_good(10, 20)
    assert not good.is_good(9, 20)
    assert not good.is_good(10, 19)
    assert not msgspec.structs.replace(good, waiting_after_bytes=1).is_good(10, 20)
    assert not msgspec.structs.replace(good, connections_after=1).is_good(10, 20)
    much = msgspec.structs.replace(good, used_after_bytes=83 * mib)
    assert not much.is_good(10, 20)
    assert msgspec.structs.replace(much, held_after_bytes=mib).is_good(10, 20)
    assert msgspec.structs.replace(much, attack=NEIGHBOUR).is_good(10, 20)
    assert not msgspec.structs.replace(good, failure="lost").is_good(10, 20)


@pytest.mark.parametrize(
    "change",
    [{"pings": 0}, {"turn_ms": 0.0}, {"p99_ms": math.nan}, {"used_before_bytes": 0}, {"used_after_bytes": 0}],
)
def test_figures_that_were_not_measured_are_not_good(change: dict[str, float]) -> None:
    mib = 1 << 20
    good = Figures("x", 1, 1, 10, 20, 1, 5, 20, 50, 60 * mib, 150 * mib, 82 * mib, 0, 0, 0)
    assert good.is_good(10, 20)
    assert not msgspec.structs.replace(good, **change).is_good(10, 20)


def test_an_attacker_that_ends_at_once_is_a_failure(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says that it attacks, as every attacker does, but its relay refuses it."""

    def command(module: str, *arguments: str) -> list[str]:
        if module != "loadtests.hostile.attacker":
            return python_command(module, *arguments)
        return [sys.executable, "-c", "print('attacking', flush=True)"]

    monkeypatch.setattr(hostile, "python_command", command)
    found = asyncio.run(hostile.measure("tiny-packets", 0.3))
    assert "the attacker had ended" in found.failure
    assert not found.is_good(20_000, 1000)


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_says_what_it_does(attack: str) -> None:
    assert ATTACKS[attack].__doc__


@pytest.mark.parametrize("attack", BROKER_ATTACKS)
def test_every_attack_on_a_broker_says_what_it_does(attack: str) -> None:
    assert BROKER_ATTACKS[attack].__doc__


def test_a_broker_that_keeps_the_memory_of_an_attack_is_a_failure_and_its_neighbour_may_keep_it() -> None:
    mib = 1 << 20
    much = Figures("broker-calls", 1, 1, 10, 20, 1, 5, 20, 50, 60 * mib, 150 * mib, 83 * mib, 0, 0, 0)
    assert not much.is_good(10, 20)
    assert msgspec.structs.replace(much, attack=BROKER_NEIGHBOUR).is_good(10, 20)
