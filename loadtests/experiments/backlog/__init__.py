"""How much does a backlog cost, with and without a replica? `python -m loadtests.experiments.backlog --help`."""

__all__: list[str] = []
