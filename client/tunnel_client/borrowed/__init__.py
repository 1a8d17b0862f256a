"""The modules that `tunnel run` loads, by their paths, into other Python processes.

They need only the standard library of Python 3.8.
"""

__all__: list[str] = []
