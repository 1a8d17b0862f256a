"""The switch: forwards packets between attachments and stores them until their arrival is confirmed. Sans-I/O."""

__all__: list[str] = []
