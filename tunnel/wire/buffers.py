"""The type of every buffer of bytes in the project."""

from typing import TypeAlias

__all__ = ["Buffer"]

# Every memoryview in the project is contiguous and has single bytes as items (format "B"), like a slice of a body.
Buffer: TypeAlias = bytes | bytearray | memoryview
