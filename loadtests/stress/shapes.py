"""The shapes of a run: how the number of users and the loss change over time."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["SHAPES", "Plan", "Stage", "make_plan"]

_RAMP_S = 20.0
# Time after the ramp in which memory still rises by design: the relay may keep a route for 60 s after the first
# SHUTDOWN (PROTOCOL 9.5).
_DRAIN_S = 75.0
_SETTLE_S = 30.0  # after a change of the load; by then, transfers have finished most of their retransmissions
_SETTLE_PART = 1 / 3  # of the shortest stage, at most: the rest of it is measured


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

    @property
    def losses(self) -> list[tuple[str, float]]:
        """The loss of each stage, and its seconds."""
        ends = [stage.from_s for stage in self.stages[1:]] + [self.ends_s]
        return [(stage.loss, end - stage.from_s) for stage, end in zip(self.stages, ends, strict=True)]

    @property
    def settle_s(self) -> float:
        """The time after a change of the load in which memory does not count."""
        return min(_SETTLE_S, min(seconds for _, seconds in self.losses) * _SETTLE_PART)


def _steps(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Keep the number of users, and use each loss for the same time. At the end the first loss comes back."""
    losses = _returning(losses)
    step_s = seconds / len(losses)
    ramp_s = min(_RAMP_S, step_s / 4)
    stages = tuple(Stage(i * step_s, users, users / ramp_s, loss) for i, loss in enumerate(losses))
    return Plan(stages, seconds, ramp_s + min(_DRAIN_S, step_s * _SETTLE_PART))


def _returning(losses: Sequence[str]) -> list[str]:
    """Return the losses so that the first one is also the last: only memory at the same loss can be compared."""
    return [*losses, losses[0]] if losses[0] != losses[-1] else list(losses)


def _ramp(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Add users over the first half of the run, with the first of `losses` all the time."""
    return Plan((Stage(0, users, 2 * users / seconds, losses[0]),), seconds, seconds / 2)


def _spike(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Start with a tenth of the users, jump to all of them, then return to a tenth, with the first of `losses`."""
    few = max(1, users // 10)
    stages = (
        Stage(0, few, few, losses[0]),
        Stage(seconds / 3, users, users, losses[0]),
        Stage(seconds * 2 / 3, few, users, losses[0]),
    )
    return Plan(stages, seconds, seconds / 9)


def _soak(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """Keep the number of users for a run of any length; the losses take turns, about a minute each. The first loss is
    also the last."""
    rate = max(1.0, users / _RAMP_S)
    turns = max(1, round(seconds / 60))
    in_turn = _returning([losses[i % len(losses)] for i in range(turns)])
    turn_s = seconds / len(in_turn)
    stages = tuple(Stage(i * turn_s, users, rate, loss) for i, loss in enumerate(in_turn))
    return Plan(stages, seconds, min(seconds / 2, _RAMP_S + min(_DRAIN_S, turn_s * _SETTLE_PART)))


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
