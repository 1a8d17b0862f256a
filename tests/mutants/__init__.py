"""Mutation testing: small changes to the source, each of which some test must notice. `python -m tests.mutants`."""

__all__: list[str] = []
