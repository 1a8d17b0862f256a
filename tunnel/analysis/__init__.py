"""What the transport did, explained with Spark. Nothing else in tunnel imports this; it needs the extra "analysis"."""

__all__: list[str] = []
