"""Renders samples as the page that Prometheus reads, with the library prometheus-client (extra `metrics`)."""

from collections.abc import Iterable, Iterator
from typing import Any

from tunnel.metrics.metric import Histogram, Metric, Sample
from tunnel.system.installing import install_command

__all__ = ["PAGE_TYPE", "MissingLibraryError", "render_page", "require_library"]

PAGE_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class MissingLibraryError(Exception):
    """The library prometheus-client is not installed; the text says how to install it."""


class _Collected:
    """Families of samples, as prometheus-client asks a collector for them."""

    def __init__(self, families: list[Any]) -> None:
        self._families = families

    def collect(self) -> Iterator[Any]:
        return iter(self._families)


def require_library() -> Any:
    """Return the library. Raise MissingLibraryError if it is not installed."""
    try:
        import prometheus_client.core
    except ImportError:
        command = install_command("prometheus-client")
        raise MissingLibraryError(f"metrics need the library prometheus-client: {command}") from None
    return prometheus_client


def render_page(samples: Iterable[Sample]) -> bytes:
    """Return the page. Samples of one metric must follow each other. Raise MissingLibraryError without the library."""
    library = require_library()
    families: list[Any] = []
    last: Metric | None = None
    for sample in samples:
        metric = sample.metric
        if metric is not last:
            families.append(_family(library.core, metric))
            last = metric
        if isinstance(sample.value, Histogram):
            buckets = [(_bound(bound), count) for bound, count in sample.value.cumulative()]
            families[-1].add_metric(sample.labels, buckets, sample.value.total)
        else:
            families[-1].add_metric(sample.labels, sample.value)
    page: bytes = library.generate_latest(_Collected(families))
    return page


def _family(core: Any, metric: Metric) -> Any:
    made = {
        "counter": core.CounterMetricFamily,
        "gauge": core.GaugeMetricFamily,
        "histogram": core.HistogramMetricFamily,
    }[metric.kind]
    return made(metric.name, metric.meaning, labels=tuple(metric.labels))


def _bound(bound: float) -> str:
    return "+Inf" if bound == float("inf") else str(bound)
