"""Helpers that several test files share."""

__all__: list[str] = []
