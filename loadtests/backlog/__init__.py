"""What does a backlog cost, with and without a replica? `python -m loadtests.backlog --help`."""

__all__: list[str] = []
