"""The analysis of traces with Spark. Nothing else in tunnel imports this package; it needs the extra "analysis"."""

__all__: list[str] = []
