"""`tunnel doctor`: examines the path between this machine and a relay, step by step."""

__all__: list[str] = []
