"""Does an outbox keep its promise while everything is killed? `python -m loadtests.outbox --help`."""

__all__: list[str] = []
