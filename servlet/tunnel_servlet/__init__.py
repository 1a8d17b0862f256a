"""The relay and the exit: the code of the command `tunnel-relay`."""

__all__: list[str] = []
