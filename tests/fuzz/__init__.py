"""Coverage-guided fuzzing of all code that takes bytes from strangers; `python -m tests.fuzz --help` explains it."""

__all__: list[str] = []
