"""The gates of a stress run: each breaks by its own fault, and each breaks when its measure is missing."""

import math
from collections.abc import Callable

import pytest

from loadtests.stress.gates import Finding, Thresholds, judge
from loadtests.stress.objects import TOLERANCE
from loadtests.stress.outcome import Outcome
from loadtests.stress.repairs import KINDS
from loadtests.stress.shapes import SHAPES, make_plan
from loadtests.stress.world import SERVERS
from tests.loadtests.stress.runs import MIB, PLAN, good_run


def broken(run: Outcome, thresholds: Thresholds | None = None) -> dict[str, Finding]:
    return {gate.name: gate for gate in judge(run, PLAN, thresholds or Thresholds()) if not gate.ok}


def test_a_good_run_breaks_nothing() -> None:
    assert broken(good_run()) == {}


def summary(run: Outcome, **change: object) -> None:
    run.summary.update(change)


def more_objects(process: str, count: int) -> Callable[[Outcome], object]:
    def change(run: Outcome) -> None:
        run.objects[process].after["tunnel.core.connection.Connection"] += count

    return change


def without_repairs(cause: str) -> Callable[[Outcome], object]:
    def change(run: Outcome) -> None:
        for row in run.rows:
            row["resent_new"].pop(cause, None)

    return change


def more_descriptors(run: Outcome) -> None:
    run.end["processes_after"] = {**run.end["processes_before"], "exit": {"descriptors": 25}}


def no_loss_at_one_step(run: Outcome) -> None:
    for row in run.rows:
        row["lost_new"] = 0 if row["loss"] == "0.01" else row["lost_new"]


FAULTS: dict[str, Callable[[Outcome], object]] = {
    "failed user actions": lambda run: summary(run, failures=1),
    "wrong bytes": lambda run: summary(run, wrong=1),
    "user actions": lambda run: summary(run, actions=0),
    "kinds of users without an action": lambda run: summary(run, kinds={"EchoUser": ["echo"], "ChurnUser": ["churn"]}),
    "descriptors left in users": lambda run: summary(run, descriptors_left=1),
    "tasks left in users": lambda run: summary(run, tasks_left=1),
    "descriptors left in exit": more_descriptors,
    "routes left at the relay": lambda run: run.end["relay"]["switch"].update(routes=1),
    "objects left in users": more_objects("users", TOLERANCE + 1),
    "objects left in relay": more_objects("relay", TOLERANCE + 1),
    "objects left in exit": more_objects("exit", TOLERANCE + 1),
    "packets lost at the relay": no_loss_at_one_step,
    "repairs by fast retransmit": without_repairs("retransmit_reordered"),
    "repairs by tail probe": without_repairs("pto_probe"),
    "repairs by timeout": without_repairs("retransmit_timeout"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_gate_breaks_by_its_own_fault_alone(name: str) -> None:
    run = good_run()
    FAULTS[name](run)
    found = broken(run)
    if name == "kinds of users without an action":  # without users that write much, there is less to repair
        assert "ChurnUser" in found[name].found
    assert set(found) == {name}


def memory_of_relay(size: float) -> Callable[[Outcome], object]:
    def change(run: Outcome) -> None:
        for row in run.rows:
            row["kept_bytes"]["relay"] = size

    return change


def drop_memory(process: str, of_seconds: int = 1) -> Callable[[Outcome], object]:
    def change(run: Outcome) -> None:
        for row in run.rows:
            if row["seconds"] % of_seconds == 0:
                del row["kept_bytes"][process]

    return change


def no_rows(run: Outcome) -> None:
    run.rows = []


MISSING: dict[str, tuple[Callable[[Outcome], object], set[str]]] = {
    "a server that was never sampled": (drop_memory("target"), {"memory of target"}),
    "users that were never sampled": (drop_memory("users"), {"memory of users"}),
    "memory that is no number": (memory_of_relay(math.nan), {"memory of relay"}),
    "memory of a process that has ended": (memory_of_relay(0), {"memory of relay"}),
    "an end that was not written": (
        lambda run: run.end.clear(),
        {"routes left at the relay", *(f"descriptors left in {name}" for name in SERVERS)},
    ),
    "a relay that did not answer": (lambda run: run.end.update(relay={}), {"routes left at the relay"}),
    "objects of the relay": (lambda run: run.objects.pop("relay"), {"objects left in relay"}),
    "objects of the users": (lambda run: run.objects.pop("users"), {"objects left in users"}),
    "a process with users that is missing": (
        lambda run: summary(run, processes=0),
        {"processes with users"},
    ),
    "all rows": (
        no_rows,
        {
            *(f"memory of {name}" for name in ("users", *SERVERS)),
            "packets lost at the relay",
            *(f"repairs by {name}" for name in ("fast retransmit", "tail probe", "timeout")),
        },
    ),
}


@pytest.mark.parametrize("name", MISSING)
def test_a_gate_without_its_measure_is_broken(name: str) -> None:
    run = good_run()
    change, gates = MISSING[name]
    change(run)
    found = broken(run)
    assert set(found) == gates
    for gate in found.values():
        if gate.name.startswith(("memory", "descriptors", "objects", "routes")):
            assert "not measured" in gate.found


def test_memory_known_for_less_than_half_of_the_time_is_not_measured() -> None:
    run = good_run()
    for row in run.rows:
        if row["seconds"] % 5:
            del row["kept_bytes"]["proxy"]
    assert "its memory is known for" in broken(run)["memory of proxy"].found
    run = good_run()
    drop_memory("proxy", of_seconds=5)(run)
    assert broken(run) == {}


def test_relay_and_exit_may_keep_more_for_more_processes_with_users() -> None:
    run = good_run()
    run.objects["users 0"] = run.objects["users 1"] = run.objects.pop("users")
    run.summary["processes"] = 2
    more_objects("relay", 2 * TOLERANCE)(run)
    assert broken(run, Thresholds(processes=2)) == {}
    more_objects("relay", 1)(run)
    assert set(broken(run, Thresholds(processes=2))) == {"objects left in relay"}


def test_the_most_connections_of_any_second_count() -> None:
    run = good_run()
    run.rows[100]["connections"] = 200
    assert broken(run, Thresholds(connections=200)) == {}
    assert set(broken(run, Thresholds(connections=201))) == {"connections at once"}


def test_processes_with_users_are_counted_and_each_has_its_own_objects() -> None:
    run = good_run()
    assert set(broken(run, Thresholds(processes=2))) == {"processes with users"}
    run.summary["processes"] = 2
    assert {"objects left in users 0", "objects left in users 1"} <= set(broken(run, Thresholds(processes=2)))


@pytest.mark.parametrize("process", ["users", *SERVERS])
@pytest.mark.parametrize("shape", SHAPES)
def test_a_leak_breaks_the_gate_of_its_process_in_every_shape(process: str, shape: str) -> None:
    """The run lasts as long as `make stress`, and the leak is far below one that grows to 97 GB in it."""
    plan = make_plan(shape, 50, 150, ["0", "0.01", "0.05", "0.1", "0.2"])

    def leaking(name: str, second: int) -> float:
        return 100 * MIB + (second * MIB / 2 if name == process else 0)

    found = {gate.name: gate for gate in judge(good_run(leaking, plan), plan, Thresholds()) if not gate.ok}
    assert f"memory of {process}" in found
    assert "% per minute" in found[f"memory of {process}"].found
    assert [name for name in found if name.startswith("memory")] == [f"memory of {process}"]


@pytest.mark.parametrize("cause", KINDS)
def test_every_kind_of_repair_is_expected_or_says_why_not(cause: str) -> None:
    (gate,) = [gate for gate in judge(good_run(), PLAN, Thresholds()) if gate.name == f"repairs by {KINDS[cause]}"]
    assert gate.limit == "some" or gate.limit.startswith("not expected: ")
    assert (gate.found == "none") == gate.limit.startswith("not expected")


@pytest.mark.parametrize(
    ("losses", "users", "seconds", "missing"),
    [
        (["0"], ["WriterUser"], 150, set()),
        (["0.05"], ["WriterUser"], 10, set()),
        (["0.05"], ["EchoUser"], 150, {"pto_probe"}),
        (["0.05"], ["WriterUser"], 150, {"pto_probe", "retransmit_reordered"}),
        (["gilbert:0.05:0.25"], ["BulkUser"], 150, {"pto_probe", "retransmit_reordered", "retransmit_timeout"}),
    ],
)
def test_repairs_are_expected_where_the_run_can_show_them(
    losses: list[str], users: list[str], seconds: float, missing: set[str]
) -> None:
    plan = make_plan("steps", 50, seconds, losses)
    run = good_run(plan=plan)
    run.summary["kinds"] = {kind: ["echo"] for kind in users}
    for row in run.rows:
        row["resent_new"] = {}
    names = {f"repairs by {KINDS[cause]}" for cause in missing}
    assert {gate.name for gate in judge(run, plan, Thresholds()) if not gate.ok and "repairs" in gate.name} == names
