"""Benchmarks: each prints its hardware, its topology and its sizes."""

__all__: list[str] = []
