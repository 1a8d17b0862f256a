"""Benchmarks. Each prints the hardware, the topology and the sizes that it used."""

__all__: list[str] = []
