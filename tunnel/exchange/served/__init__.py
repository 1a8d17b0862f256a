"""The relay's half of lanes: it applies each request once, and keeps what no request has confirmed."""

__all__: list[str] = []
