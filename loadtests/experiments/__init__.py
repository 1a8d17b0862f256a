"""Experiments with one question each: `python -m loadtests.experiments.NAME --help`."""

__all__: list[str] = []
