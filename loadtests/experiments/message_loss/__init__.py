"""Where are messages lost when a connection breaks? A sender, a broker and receivers, and a break in the middle."""

__all__: list[str] = []
