"""Plans of stress runs: how many users are active when, with which loss."""

import pytest

from loadtests.stress.shapes import SHAPES, Plan, Stage, make_plan


def at(plan: Plan, seconds: float) -> Stage:
    stage = plan.at(seconds)
    assert stage is not None
    return stage


def test_steps_change_only_the_loss() -> None:
    plan = make_plan("steps", 50, 150, ["0", "0.1"])
    assert {at(plan, second).users for second in range(150)} == {50}
    assert [at(plan, second).loss for second in (0, 49, 50, 99, 100, 149)] == ["0", "0", "0.1", "0.1", "0", "0"]
    assert make_plan("steps", 200, 600, ["0"]).judged_from_s == 95
    assert make_plan("steps", 200, 600, ["0", "0.1", "0"]).losses == [("0", 200), ("0.1", 200), ("0", 200)]


def test_a_part_of_every_stage_is_measured() -> None:
    plan = make_plan("steps", 50, 150, ["0", "0.01", "0.05", "0.1", "0.2"])
    assert plan.settle_s == pytest.approx(25 / 3)
    assert plan.judged_from_s == pytest.approx(6.25 + 25 / 3)
    assert make_plan("steps", 50, 600, ["0"]).settle_s == 30


def test_a_spike_comes_and_goes() -> None:
    plan = make_plan("spike", 100, 90, ["0.05"])
    assert [at(plan, second).users for second in (0, 31, 61)] == [10, 100, 10]


def test_a_ramp_ends_with_all_users() -> None:
    stage = at(make_plan("ramp", 100, 50, ["0"]), 1)
    assert (stage.users, stage.spawn_rate) == (100, 4)  # all are there after half of the run


def test_a_soak_takes_the_losses_in_turn() -> None:
    plan = make_plan("soak", 10, 3600, ["0", "0.1", "0.2"])
    assert [at(plan, minute * 60 + 1).loss for minute in range(4)] == ["0", "0.1", "0.2", "0"]
    assert [stage.loss for stage in make_plan("soak", 10, 180, ["0", "0.1", "0.2"]).stages] == ["0", "0.1", "0.2", "0"]


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("seconds", [150, 600, 3600])
def test_a_load_comes_back_or_lasts_so_that_memory_can_be_compared(shape: str, seconds: float) -> None:
    plan = make_plan(shape, 50, seconds, ["0", "0.01", "0.1"])
    assert plan.judged_from_s <= seconds / 2
    first, last = at(plan, plan.judged_from_s), at(plan, seconds - 1)
    assert (first.loss, first.users) == (last.loss, last.users)


@pytest.mark.parametrize("shape", sorted(SHAPES))
def test_every_shape_ends(shape: str) -> None:
    plan = make_plan(shape, 5, 30, ["0"])
    assert at(plan, 29.9).users >= 1
    assert plan.at(30) is None


@pytest.mark.parametrize(("users", "seconds", "losses"), [(0, 1, ["0"]), (1, 0, ["0"]), (1, 1, [])])
def test_plans_without_users_seconds_or_losses_are_refused(users: int, seconds: float, losses: list[str]) -> None:
    with pytest.raises(ValueError, match="a run needs users, seconds and at least one loss"):
        make_plan("steps", users, seconds, losses)
