"""Starts the intermediaries of the field: a module for each family of programs."""

__all__: list[str] = []
