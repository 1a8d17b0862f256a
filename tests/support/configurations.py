"""Counts the tests of a run by the configuration of the real proxy that each of them used."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest

__all__ = ["CONFIGURATION", "configuration_lines"]

CONFIGURATION = "proxy configuration"
"""The name of this property in a test's report."""

_OUTCOMES = ("passed", "failed", "error")


def configuration_lines(stats: Mapping[str, Sequence[object]]) -> Iterator[str]:
    """Yield a line for each configuration; none if no test started a proxy."""
    found: dict[str, Counter[str]] = {}
    for outcome in _OUTCOMES:
        for report in stats.get(outcome, ()):
            if isinstance(report, pytest.TestReport):
                for name, value in report.user_properties:
                    if name == CONFIGURATION:
                        found.setdefault(str(value), Counter())[outcome] += 1
    width = max(map(len, found), default=0)
    for configuration, outcomes in sorted(found.items()):
        counts = ", ".join(f"{outcomes[outcome]} {outcome}" for outcome in _OUTCOMES if outcomes[outcome])
        yield f"{configuration:<{width}}  {counts}"
