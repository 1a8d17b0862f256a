"""The modules that the Python processes under `tunnel run` load, by their paths.

They need only the standard library of Python 3.8.
"""

__all__: list[str] = []
