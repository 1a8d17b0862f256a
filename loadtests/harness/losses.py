"""Random loss of single packets inside accepted bodies: the filters for the relay's one seam, `packet_filter`.

Bernoulli loss has no memory. Gilbert's model has two states: in the good one nothing is lost, in the bad one
everything; it enters the bad one with probability p and leaves it with r, each packet one step. The share that is lost
is p / (p + r), a burst has 1 / r packets on average. Elliott's addition: loss in the good and mercy in the bad state.
"""

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from tunnel.clock import now_us
from tunnel.traces.record import TraceEvent, TraceFault, TraceSink, TraceSource
from tunnel.wire import Frame

__all__ = ["Bernoulli", "GilbertElliott", "LossModel", "LossyFilter", "parse_model"]


@dataclass(frozen=True, slots=True)
class Bernoulli:
    """Each packet alone."""

    loss: float

    def draw(self, random: Random, is_bad: bool) -> tuple[bool, bool]:
        """Whether this packet is lost, and the state for the next one."""
        return random.random() < self.loss, False

    @property
    def share(self) -> float:
        """Lost, of all packets, in the long run."""
        return self.loss


@dataclass(frozen=True, slots=True)
class GilbertElliott:
    """Bursts."""

    p: float  # good to bad
    r: float  # bad to good
    loss_good: float = 0.0
    loss_bad: float = 1.0

    def draw(self, random: Random, is_bad: bool) -> tuple[bool, bool]:
        """Whether this packet is lost, and the state for the next one."""
        lost = random.random() < (self.loss_bad if is_bad else self.loss_good)
        moved = random.random() < (self.r if is_bad else self.p)
        return lost, is_bad != moved

    @property
    def share(self) -> float:
        """Lost, of all packets, in the long run."""
        bad = self.p / (self.p + self.r) if self.p else 0.0
        return bad * self.loss_bad + (1 - bad) * self.loss_good


LossModel = Bernoulli | GilbertElliott


def parse_model(text: str) -> LossModel:
    """`0.05`, or `gilbert:P:R[:GOOD:BAD]`. ValueError for what is neither, or no probability."""
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
            f"{text!r} is no loss: write a probability, as 0.05, or gilbert:P:R[:GOOD:BAD], as gilbert:0.01:0.25"
        ) from None
    return model


class LossyFilter:
    """A `packet_filter` that loses by a model, seeded. `model` may be replaced at any time.

    One state for all packets of the relay, in the order of their coming: a burst hits whoever is there.
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
        """Whether it passes."""
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
