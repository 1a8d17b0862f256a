"""Random loss of single packets inside accepted bodies: filters for the relay's `packet_filter`.

Bernoulli loss is independent for each packet. Gilbert's model has two states: in the good state nothing is lost, in
the bad state everything. With each packet it enters the bad state with probability p, or leaves it with probability r.
The share of lost packets is p / (p + r), and a burst has 1 / r packets on average. Elliott's extension gives each of
the two states its own loss probability.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tunnel.system.clock import now_us
from tunnel.traces.record import TraceEvent, TraceFault, TraceSink, TraceSource
from tunnel.wire import Frame

__all__ = ["Bernoulli", "GilbertElliott", "LossModel", "LossyFilter", "parse_model"]


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Loss that is independent for each packet."""

    loss: float

    def draw(self, random: Random, is_bad: bool) -> tuple[bool, bool]:
        """Return whether this packet is lost, and whether the state is bad for the next one."""
        return random.random() < self.loss, False

    @property
    def share(self) -> float:
        """The share of packets that is lost in the long run."""
        return self.loss


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Loss in bursts: the model of Gilbert and Elliott."""

    p: float  # good to bad
    r: float  # bad to good
    loss_good: float = 0.0
    loss_bad: float = 1.0

    def draw(self, random: Random, is_bad: bool) -> tuple[bool, bool]:
        """Return whether this packet is lost, and whether the state is bad for the next one."""
        lost = random.random() < (self.loss_bad if is_bad else self.loss_good)
        moved = random.random() < (self.r if is_bad else self.p)
        return lost, is_bad != moved

    @property
    def share(self) -> float:
        """The share of packets that is lost in the long run."""
        bad = self.p / (self.p + self.r) if self.p else 0.0
        return bad * self.loss_bad + (1 - bad) * self.loss_good


LossModel = Bernoulli | GilbertElliott


def parse_model(text: str) -> LossModel:
    """Parse `0.05` or `gilbert:P:R[:GOOD:BAD]`. Raise ValueError for other forms, and for values outside 0 to 1."""
    name, *values = text.split(":")
    try:
        if name == "gilbert" and len(values) in (2, 4):
            numbers = [float(value) for value in values]
            if numbers[1] <= 0:
                raise ValueError
            model: LossModel = GilbertElliott(*numbers)
        else:
            numbers = [float(text)]
            model = Bernoulli(*numbers)
        if not all(0 <= number <= 1 for number in numbers):
            raise ValueError
    except ValueError:
        raise ValueError(
            f"{text!r} is not a loss: write a probability such as 0.05, or gilbert:P:R[:GOOD:BAD], "
            "such as gilbert:0.01:0.25"
        ) from None
    return model


class LossyFilter:
    """A seeded `packet_filter` that drops packets by a loss model. `model` may be replaced at any time.

    All packets of the relay, in the order of their arrival, share one state: a burst hits all connections that are
    active.
    """

    def __init__(
        self,
        model: LossModel,
        seed: int,
        trace: TraceSink | None = None,
        *,
        node: str = "lossyrelay",
        now_us: Callable[[], int] = now_us,
    ) -> None:
        self.model = model
        self.passed = 0
        self.lost = 0
        self._random = Random(seed)
        self._is_bad = False
        self._trace = None if trace is None else TraceSource(trace, node)
        self._now_us = now_us

    def __call__(self, frame: Frame) -> bool:
        """Decide about one packet; return whether it passes."""
        lost, self._is_bad = self.model.draw(self._random, self._is_bad)
        if not lost:
            self.passed += 1
            return True
        self.lost += 1
        if self._trace is not None:
            self._trace.tell(
                TraceEvent.FAULT_INJECTED,
                self._now_us(),
                cause=TraceFault.PACKET_DROPPED,
                connection=frame.source,
                peer=frame.destination,
                packet_type=frame.type,
                sequence=frame.sequence,
                attempt=frame.attempt,
                size_bytes=frame.size,
            )
        return False
