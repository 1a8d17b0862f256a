"""What `tunnel run` puts into other Pythons: loaded by path, standard library only, Python 3.8."""

__all__: list[str] = []
