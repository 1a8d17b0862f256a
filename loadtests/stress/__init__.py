"""The stress suite: users on tunnel sockets over a network that gets worse, measures each second, gates at the end."""

__all__: list[str] = []
