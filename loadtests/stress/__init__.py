"""The stress suite: users on tunnel sockets, bad weather that gets worse, measures each second, gates at the end."""

__all__: list[str] = []
