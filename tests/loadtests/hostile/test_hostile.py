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
from loadtests.hostile.exit_attacker import EXIT_ATTACKS, EXIT_NEIGHBOUR

SHORT = ("tiny-bodies", "unfinished-bodies")  # the others differ only in what they send
LENIENT = ("--seconds", "0.3", "--limit-ms", "20000", "--turn-ms", "1000", "--ratio", "1000", "--json")
BROKER_SHORT = ("broker-calls", "broker-slow-requests")


@pytest.mark.timeout(300)
def test_the_victim_is_measured_beside_the_neighbour_and_two_attacks(capsys: pytest.CaptureFixture[str]) -> None:
    only = [word for attack in SHORT for word in ("--only", attack)]
    assert main([*only, *LENIENT]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["attack"] for each in found] == [NEIGHBOUR, *SHORT]
    assert all(each["pings"] and each["rss_bytes"] and each["turn_ms"] and not each["failure"] for each in found)


@pytest.mark.timeout(300)
def test_two_users_of_a_broker_are_measured_beside_the_neighbour_and_two_attacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = [word for attack in BROKER_SHORT for word in ("--only", attack)]
    assert main([*only, *LENIENT]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["attack"] for each in found] == [BROKER_NEIGHBOUR, *BROKER_SHORT]
    assert all(each["pings"] and each["rss_bytes"] and each["turn_ms"] and not each["failure"] for each in found)


@pytest.mark.timeout(300)
def test_two_users_of_a_separate_exit_are_measured_beside_the_neighbour_and_both_attacks(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = [word for attack in EXIT_ATTACKS for word in ("--only", attack)]
    assert main([*only, *LENIENT]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [each["attack"] for each in found] == [EXIT_NEIGHBOUR, *EXIT_ATTACKS]
    assert all(each["pings"] and each["rss_bytes"] and each["turn_ms"] and not each["failure"] for each in found)


def test_a_slow_or_lost_victim_a_long_turn_and_a_remnant_are_failures() -> None:
    mib = 1 << 20
    good = Figures("x", 1, 1, 10, 20, 1, 5, 10, 20, 50, 60 * mib, 150 * mib, 82 * mib, 0, 0, 0)
    assert not good.fault(10, 20)
    assert good.fault(9, 20) == "p99 10.0 ms, at most 9"
    assert good.fault(10, 19) == "a turn of 20.0 ms, at most 19"
    assert msgspec.structs.replace(good, waiting_after_bytes=1).fault(10, 20)
    assert msgspec.structs.replace(good, connections_after=1).fault(10, 20)
    much = msgspec.structs.replace(good, used_after_bytes=83 * mib)
    assert much.fault(10, 20)
    assert not msgspec.structs.replace(much, held_after_bytes=mib).fault(10, 20)
    for neighbour in (NEIGHBOUR, EXIT_NEIGHBOUR):
        assert not msgspec.structs.replace(much, attack=neighbour).fault(10, 20)
    assert msgspec.structs.replace(good, failure="lost").fault(10, 20)


@pytest.mark.parametrize(
    "change",
    [{"pings": 0}, {"turn_ms": 0.0}, {"p99_ms": math.nan}, {"used_before_bytes": 0}, {"used_after_bytes": 0}],
)
def test_figures_that_were_not_measured_are_not_good(change: dict[str, float]) -> None:
    mib = 1 << 20
    good = Figures("x", 1, 1, 10, 20, 1, 5, 10, 20, 50, 60 * mib, 150 * mib, 82 * mib, 0, 0, 0)
    assert not good.fault(10, 20)
    assert msgspec.structs.replace(good, **change).fault(10, 20)


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
    assert found.fault(20_000, 1000)


@pytest.mark.parametrize("attack", ATTACKS)
def test_every_attack_says_what_it_does(attack: str) -> None:
    assert ATTACKS[attack].__doc__


@pytest.mark.parametrize("attack", EXIT_ATTACKS)
def test_every_attack_on_an_exit_says_what_it_does(attack: str) -> None:
    assert EXIT_ATTACKS[attack].__doc__


@pytest.mark.parametrize("attack", BROKER_ATTACKS)
def test_every_attack_on_a_broker_says_what_it_does(attack: str) -> None:
    assert BROKER_ATTACKS[attack].__doc__


def test_a_broker_that_keeps_the_memory_of_an_attack_is_a_failure_and_its_neighbour_may_keep_it() -> None:
    mib = 1 << 20
    much = Figures("broker-calls", 1, 1, 10, 20, 1, 5, 10, 20, 50, 60 * mib, 150 * mib, 83 * mib, 0, 0, 0)
    assert much.fault(10, 20)
    assert not msgspec.structs.replace(much, attack=BROKER_NEIGHBOUR).fault(10, 20)


BESIDE_NEIGHBOUR = Figures(BROKER_NEIGHBOUR, 5, 20, 100, 200, 5, 250, 50, 3, 1, 1, 1, 1, 0, 0, 0)


@pytest.mark.parametrize(
    ("change", "harm"),
    [
        ({"p50_ms": 100, "p99_ms": 500, "pings_per_second": 10}, ""),
        ({"p50_ms": 101}, "p50 101.0 ms, beside an honest neighbour 20.0 ms"),
        ({"p99_ms": 501}, "p99 501.0 ms, beside an honest neighbour 100.0 ms"),
        ({"pings_per_second": 9.9}, "9.9 round trips a second, beside an honest neighbour 50.0"),
    ],
)
def test_two_users_an_attacker_may_harm_another_five_times_as_much_as_a_neighbour(
    change: dict[str, float], harm: str
) -> None:
    beside = msgspec.structs.replace(BESIDE_NEIGHBOUR, attack="broker-calls", **change)
    assert beside.harm(BESIDE_NEIGHBOUR, 5) == harm


def test_two_users_a_little_more_than_next_to_nothing_is_no_harm() -> None:
    quick = msgspec.structs.replace(BESIDE_NEIGHBOUR, p50_ms=1, p99_ms=2, pings_per_second=90)
    slow = {"p50_ms": 50.0, "p99_ms": 150.0, "pings_per_second": 1000 / (1000 / 90 + 50)}
    assert not msgspec.structs.replace(quick, **slow).harm(quick, 5)
    for name, value in slow.items():
        worse = value - 0.1 if name == "pings_per_second" else value + 3
        assert msgspec.structs.replace(quick, **slow | {name: worse}).harm(quick, 5)


@pytest.mark.parametrize(
    ("p50s_ms", "code", "measured"),
    [([20], 0, 2), ([900, 20], 0, 4), ([900, 900, 20], 0, 6), ([900, 900, 900, 20], 1, 6)],
)
def test_two_users_harm_fails_if_it_shows_three_times(
    p50s_ms: list[float],
    code: int,
    measured: int,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A noisy machine shows it once; each time, the neighbour is measured again beside the attack."""
    rows: list[str] = []
    left = list(p50s_ms)

    async def measure(attack: str, seconds: float) -> Figures:
        rows.append(attack)
        p50_ms = 20 if attack == BROKER_NEIGHBOUR else left.pop(0)
        return msgspec.structs.replace(BESIDE_NEIGHBOUR, attack=attack, p50_ms=p50_ms)

    monkeypatch.setattr(hostile, "measure", measure)
    assert main(["--only", "broker-calls"]) == code
    assert rows == [BROKER_NEIGHBOUR, "broker-calls"] * (measured // 2)
    assert ("beside an honest neighbour" in capsys.readouterr().out) == (len(p50s_ms) > 1)


def test_two_users_an_attack_that_is_bad_otherwise_is_not_measured_again(monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[str] = []

    async def measure(attack: str, seconds: float) -> Figures:
        rows.append(attack)
        is_attack = attack != BROKER_NEIGHBOUR
        return msgspec.structs.replace(
            BESIDE_NEIGHBOUR, attack=attack, p50_ms=900 if is_attack else 20, turn_ms=21 if is_attack else 3
        )

    monkeypatch.setattr(hostile, "measure", measure)
    assert main(["--only", "broker-calls"]) == 1
    assert rows == [BROKER_NEIGHBOUR, "broker-calls"]
