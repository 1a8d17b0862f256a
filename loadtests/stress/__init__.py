"""The stress suite: users of tunnel sockets while packet loss grows, measures each second, and limits on them."""

__all__: list[str] = []
