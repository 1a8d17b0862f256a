"""What a metric is: a name, a meaning, and labels whose values form closed sets.

No value of a label comes from a peer: otherwise a peer could make the page as long as it likes, and the
readers of the page would learn targets. The only exceptions are `OPEN_LABELS`, which the operator bounds.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

__all__ = ["OPEN_LABELS", "SECONDS", "Histogram", "Kind", "Metric", "Sample"]

Kind: TypeAlias = Literal["counter", "gauge", "histogram"]

OPEN_LABELS = frozenset({"user", "version", "python"})
"""The labels whose values are not listed with the metric: users, whom the operator names and asks to be shown, and the
versions of the program and of Python, of which a process has one each."""

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Upper bounds for the histograms of times: from a target in the same rack to the deadline of a dial."""


class Histogram:
    """Counts observations by size, in plain integers: `counts[i]` are those up to `bounds[i]` and above the bound
    before, and the last one those above all bounds."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float] = SECONDS) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count one observation."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def cumulative(self) -> Iterator[tuple[float, int]]:
        """Yield each bound, and infinity, with the number of observations up to it."""
        count = 0
        for bound, number in zip((*self.bounds, float("inf")), self.counts, strict=True):
            count += number
            yield bound, count


@dataclass(frozen=True, eq=False)
class Metric:
    """One metric. `labels` has the values of each label; those of `OPEN_LABELS` have none here."""

    name: str
    kind: Kind
    meaning: str
    labels: Mapping[str, tuple[str, ...]]

    def sample(self, value: float | Histogram, **labels: str) -> "Sample":
        """Return one value of this metric. Raise ValueError if a label or its value is not one of the metric."""
        if labels.keys() != self.labels.keys():
            raise ValueError(f"{self.name} has the labels {sorted(self.labels)}, not {sorted(labels)}")
        for label, text in labels.items():
            if label not in OPEN_LABELS and text not in self.labels[label]:
                raise ValueError(f"{self.name}: {label} is one of {self.labels[label]}, not {text!r}")
        return Sample(self, tuple(labels[label] for label in self.labels), value)

    @classmethod
    def counter(cls, name: str, meaning: str, **labels: tuple[str, ...]) -> "Metric":
        """Return a metric that only rises."""
        return cls(name, "counter", meaning, labels)

    @classmethod
    def gauge(cls, name: str, meaning: str, **labels: tuple[str, ...]) -> "Metric":
        """Return a metric that rises and falls."""
        return cls(name, "gauge", meaning, labels)

    @classmethod
    def histogram(cls, name: str, meaning: str, **labels: tuple[str, ...]) -> "Metric":
        """Return a metric that counts observations by size."""
        return cls(name, "histogram", meaning, labels)


@dataclass(frozen=True)
class Sample:
    """One value of a metric, with the values of its labels in their order."""

    metric: Metric
    labels: tuple[str, ...]
    value: float | Histogram
