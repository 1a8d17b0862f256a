"""Mutation testing: small changes to the source, each of which a test must notice or defended.txt must explain."""

__all__: list[str] = []
