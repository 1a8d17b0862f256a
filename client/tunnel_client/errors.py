"""The error for a command that cannot work with its arguments, settings or files."""

__all__ = ["UsageError"]


class UsageError(Exception):
    """A command cannot work with its arguments, settings or files (exit code 2). The text says what to do."""
