"""Benchmarks. Each prints a table, or JSON; most of the tables also name the hardware and the sizes."""

__all__: list[str] = []
