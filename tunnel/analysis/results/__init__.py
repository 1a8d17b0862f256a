"""From the tables to plain values: the queries in their order, their rows, and what is derived from them."""

__all__: list[str] = []
