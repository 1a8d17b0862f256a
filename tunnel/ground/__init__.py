"""What imports nothing of the project and touches nothing: names, numbers, notations and texts. Sans-I/O."""

__all__: list[str] = []
