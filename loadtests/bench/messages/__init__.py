"""The speed of messages through a relay: `python -m loadtests.bench.messages --help`."""

__all__: list[str] = []
