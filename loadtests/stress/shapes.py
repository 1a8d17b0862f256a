"""The shapes of a run: how the number of users and the loss change over time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["SHAPES", "Plan", "Stage", "make_plan"]

_RAMP_S = 20.0
# Time after the ramp in which memory still rises by design: the relay may keep a route for 60 s after the first
# SHUTDOWN (PROTOCOL 9.5).
_DRAIN_S = 75.0


@dataclass(frozen=True, slots=True)
class Stage:
    """The users and the loss from `from_s` until the next stage."""

    from_s: float
    users: int
    spawn_rate: float
    loss: str


@dataclass(frozen=True, slots=True)
class Plan:
    """The stages in order, the end of the run, and the time from which memory is judged."""

    stages: tuple[Stage, ...]
    ends_s: float
    judged_from_s: float

    def at(self, seconds: float) -> Stage | None:
        """Return the stage that is in force `seconds` after the start; None if the run is over."""
        if seconds >= self.ends_s:
            return None
        return [stage for stage in self.stages if stage.from_s <= seconds][-1]


def _steps(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Keep the number of users, and use each loss for the same time."""
    step_s = seconds / len(losses)
    rate = max(1.0, users / min(_RAMP_S, step_s / 2))
    judged_from_s = min(seconds / 2, users / rate + _DRAIN_S)
    return Plan(tuple(Stage(i * step_s, users, rate, loss) for i, loss in enumerate(losses)), seconds, judged_from_s)


def _ramp(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Add users over the whole run, with the first of `losses` all the time."""
    return Plan((Stage(0, users, users / seconds, losses[0]),), seconds, seconds / 2)


def _spike(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Start with a tenth of the users, jump to all of them, then return to a tenth, with the first of `losses`."""
    few = max(1, users // 10)
    stages = (
        Stage(0, few, few, losses[0]),
        Stage(seconds / 3, users, users, losses[0]),
        Stage(seconds * 2 / 3, few, users, losses[0]),
    )
    return Plan(stages, seconds, seconds)


def _soak(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Keep the number of users for a run of any length; the losses take turns, about a minute each."""
    rate = max(1.0, users / _RAMP_S)
    turns = max(1, round(seconds / 60))
    stages = tuple(Stage(i * seconds / turns, users, rate, losses[i % len(losses)]) for i in range(turns))
    return Plan(stages, seconds, min(seconds / 2, _RAMP_S + _DRAIN_S))


SHAPES: dict[str, Callable[[int, float, Sequence[str]], Plan]] = {
    "steps": _steps,
    "ramp": _ramp,
    "spike": _spike,
    "soak": _soak,
}


def make_plan(shape: str, users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Return a plan of this shape. Raise ValueError if there are no users, seconds or losses."""
    if users < 1 or seconds <= 0 or not losses:
        raise ValueError("a run needs users, seconds and at least one loss, as in: --losses 0,0.01,0.05")
    return SHAPES[shape](users, seconds, losses)
