"""The switch: forwards packets between attachments and stores them until they have left. Sans-I/O."""

__all__: list[str] = []
