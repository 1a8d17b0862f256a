"""How the crowd and the weather change: a function of the seconds since the start, each."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

__all__ = ["SHAPES", "Plan", "Stage", "make_plan"]

_RAMP_S = 20.0
_DRAIN_S = 75.0  # a closed connection is remembered for a minute (PROTOCOL 5.7): until then memory rises by design


@dataclass(frozen=True, slots=True)
class Stage:
    """From now on, until the next one."""

    from_s: float
    users: int
    spawn_rate: float
    loss: str


@dataclass(frozen=True, slots=True)
class Plan:
    """Stages in order, and when it is over."""

    stages: tuple[Stage, ...]
    ends_s: float
    ramp_s: float

    def at(self, seconds: float) -> Stage | None:
        """What is to be then; None when it is over."""
        if seconds >= self.ends_s:
            return None
        return [stage for stage in self.stages if stage.from_s <= seconds][-1]


def _steps(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """The same crowd all the time; the loss steps up."""
    step_s = seconds / len(losses)
    rate = max(1.0, users / min(_RAMP_S, step_s / 2))
    ramp_s = min(seconds / 2, users / rate + _DRAIN_S)
    return Plan(tuple(Stage(i * step_s, users, rate, loss) for i, loss in enumerate(losses)), seconds, ramp_s)


def _ramp(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """More and more users, at the first loss."""
    return Plan((Stage(0, users, users / seconds, losses[0]),), seconds, seconds / 2)


def _spike(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """A tenth of the crowd, suddenly all of it, then a tenth again."""
    few = max(1, users // 10)
    stages = (
        Stage(0, few, few, losses[0]),
        Stage(seconds / 3, users, users, losses[0]),
        Stage(seconds * 2 / 3, few, users, losses[0]),
    )
    return Plan(stages, seconds, seconds)


def _soak(users: int, seconds: float, losses: Sequence[str]) -> Plan:
    """As long as you like; the losses take turns, a minute each."""
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
    """A plan of that shape. ValueError when a number makes no sense."""
    if users < 1 or seconds <= 0 or not losses:
        raise ValueError("a run needs users, seconds and at least one loss, as in: --losses 0,0.01,0.05")
    return SHAPES[shape](users, seconds, losses)
