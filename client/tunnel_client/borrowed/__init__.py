"""The modules that `tunnel run` loads into other Pythons by path. They need only the standard library of Python 3.8."""

__all__: list[str] = []
