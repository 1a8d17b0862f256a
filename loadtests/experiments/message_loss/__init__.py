"""Where do messages get lost when a connection breaks? A sender, receivers, a broker, and a break in the middle."""

__all__: list[str] = []
