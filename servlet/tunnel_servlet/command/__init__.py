"""The command `tunnel-relay`, and the files that an operator keeps."""

__all__: list[str] = []
