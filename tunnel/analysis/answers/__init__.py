"""What commands answer about traces, besides the report: what changed, and what happened to one connection."""

__all__: list[str] = []
