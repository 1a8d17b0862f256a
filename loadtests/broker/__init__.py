"""Does a broker lose or repeat messages while it, its clients and the relay are killed?

See `python -m loadtests.broker --help`.
"""

__all__: list[str] = []
