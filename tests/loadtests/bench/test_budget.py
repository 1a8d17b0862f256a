"""What an echo, a connection and a MiB cost is as in `loadtests/bench/budget.json`."""

import platform
from pathlib import Path

import msgspec
import pytest

from loadtests.bench import budget, programs
from loadtests.bench.budget import Budget, main, objections
from loadtests.bench.budget_setups import COUNTS, SETUPS, BusyError, Row

ECHO = Row("link-inline", "relay", "echo", calls=2000, builtin=1000, packets=12, allocations=4000, system=30)


@pytest.mark.timeout(900)  # it takes 15 s, but repeats what differs, and a busy machine lets it wait
@pytest.mark.real("strace", "cc")
def test_no_echo_connection_or_mib_costs_more_than_before(capsys: pytest.CaptureFixture[str]) -> None:
    """Both carriers, and both kinds of exit. A change that needs more says so in budget.json (--update)."""
    code = main(["--only", "link-inline,poll-separate", "--units", "7"])
    said = capsys.readouterr().err
    if code == 4:
        pytest.skip(said)
    assert code == 0, said


@pytest.mark.parametrize(
    ("count", "now", "is_right"),
    [
        ("calls", 2100, True),
        ("calls", 2200, False),
        ("calls", 1700, True),
        ("calls", 1600, False),
        ("packets", 12, True),
        ("packets", 13, False),
        ("system", 34, True),
        ("system", 35, False),
    ],
)
def test_a_count_that_is_higher_or_far_lower_than_the_kept_one_is_named(count: str, now: float, is_right: bool) -> None:
    found = msgspec.structs.replace(ECHO, **{count: now})
    said = objections([found], [ECHO])
    assert list(said) == ([] if is_right else [("link-inline", "relay", "echo", count)])
    for text in said.values():
        assert text.startswith(f"link-inline, relay, echo: {now:,.0f} {count}")
        assert ("--update" in text) == (now < getattr(ECHO, count))


def test_a_count_that_the_file_lacks_is_named() -> None:
    assert {count for *_, count in objections([ECHO], [])} == set(COUNTS)


def test_only_what_differs_in_each_of_three_attempts_fails(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dear = msgspec.structs.replace(ECHO, calls=3000)
    attempts = [[dear], [dear], [ECHO]]
    monkeypatch.setattr("loadtests.bench.budget.Tools.find", lambda directory: None)
    monkeypatch.setattr(budget, "FILE", tmp_path / "budget.json")
    monkeypatch.setattr(budget, "_attempt", lambda tools, setups, units, *, is_watched: attempts.pop(0))
    Budget("3.11", [ECHO]).write()
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "11", "7"))
    assert main([]) == 0
    attempts = [[dear], [dear], [dear]]
    assert main([]) == 1
    assert "3,000 calls, more than 2,000 as in budget.json" in capsys.readouterr().err
    attempts = [[dear]]
    assert main(["--update"]) == 0
    assert Budget.read().rows == [dear]
    monkeypatch.setattr(platform, "python_version_tuple", lambda: ("3", "12", "1"))
    attempts = [[ECHO]]
    assert main(["--json"]) == 0
    captured = capsys.readouterr()
    assert msgspec.json.decode(captured.out.splitlines()[-1], type=list[Row]) == [ECHO]
    assert "nothing was compared" in captured.err


def test_a_relay_that_is_watched_may_cost_three_percent_more_for_all_but_a_connection(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("loadtests.bench.budget.Tools.find", lambda directory: None)
    relay = msgspec.structs.replace(ECHO, process="relay")
    others = [msgspec.structs.replace(relay, unit="connection"), msgspec.structs.replace(ECHO, process="client")]
    plain = [relay, *others]
    watched: list[list[Row]] = []

    def attempt(tools: object, setups: object, units: int, *, is_watched: bool = False) -> list[Row]:
        return watched.pop(0) if is_watched else plain

    def costing(calls: float) -> list[Row]:
        return [
            msgspec.structs.replace(relay, calls=calls),
            *(msgspec.structs.replace(one, calls=9e9) for one in others),
        ]

    monkeypatch.setattr(budget, "_attempt", attempt)
    watched = [costing(relay.calls * 1.03)]
    assert main(["--watched"]) == 0
    watched = [costing(relay.calls * 1.04), costing(relay.calls)]
    assert main(["--watched"]) == 0
    watched = [costing(relay.calls * 1.04)] * 3
    assert main(["--watched"]) == 1
    assert (
        f"{relay.calls * 1.04:,.0f} calls when it is watched, {relay.calls:,.0f} otherwise" in capsys.readouterr().err
    )
    with pytest.raises(SystemExit):
        main(["--watched", "--update"])
    assert "leave --watched out" in capsys.readouterr().err


def test_the_file_has_every_set_up_and_unit_once() -> None:
    places = [(row.setup, row.process, row.unit) for row in Budget.read().rows]
    assert len(set(places)) == len(places) == 30
    assert {setup for setup, *_ in places} == set(SETUPS)


def test_without_strace_there_is_no_result(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(programs, "which", lambda name: None)
    assert main([]) == 2
    assert "strace is not installed: run make system-deps" in capsys.readouterr().err


def test_a_busy_machine_gives_no_counts(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def attempt(*arguments: object, **options: object) -> list[Row]:
        raise BusyError("link-inline: it waited")

    monkeypatch.setattr("loadtests.bench.budget.Tools.find", lambda directory: None)
    monkeypatch.setattr(budget, "_attempt", attempt)
    assert main([]) == 4
    assert "the machine is too busy: link-inline: it waited" in capsys.readouterr().err


def test_unknown_names_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--only", "nothing"])
    assert ended.value.code == 2
    assert "there is no set-up named nothing: choose from link-inline" in capsys.readouterr().err
