"""The error of a command that cannot work as it was called."""

__all__ = ["UsageError"]


class UsageError(Exception):
    """The command was not called in a way that can work: exit code 2. The text says what to do."""
