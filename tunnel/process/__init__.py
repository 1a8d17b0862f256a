"""What a whole process needs: a command line, an event loop, memory, descriptors, and an end in peace."""

__all__: list[str] = []
