"""The exit: an ordinary endpoint that dials TCP and UDP targets."""

__all__: list[str] = []
