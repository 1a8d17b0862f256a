"""Coverage-guided fuzzing of everything that meets bytes of a stranger; `python -m tests.fuzz` says how."""

__all__: list[str] = []
