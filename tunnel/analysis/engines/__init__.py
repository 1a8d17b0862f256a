"""The engines that run queries over tables, what they need of this machine, and the folders that they reach."""

__all__: list[str] = []
