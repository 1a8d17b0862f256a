"""Does an outbox deliver every message exactly once while its processes are killed?

See `python -m loadtests.experiments.outbox --help`.
"""

__all__: list[str] = []
