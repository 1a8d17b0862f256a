"""The one name for "some bytes", whoever owns them."""

from typing import TypeAlias

__all__ = ["Buffer"]

# A memoryview here is contiguous and of single bytes (format "B"), as slices of bodies are.
Buffer: TypeAlias = bytes | bytearray | memoryview
