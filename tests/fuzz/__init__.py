"""Coverage-guided fuzzing of code that reads bytes of other parties; `python -m tests.fuzz --help` explains it."""

__all__: list[str] = []
