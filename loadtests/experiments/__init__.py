"""Experiments, each of which answers one question: `python -m loadtests.experiments.NAME --help`."""

__all__: list[str] = []
