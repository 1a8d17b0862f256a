"""Does an outbox keep its promise while everything is killed? `python -m loadtests.experiments.outbox --help`."""

__all__: list[str] = []
