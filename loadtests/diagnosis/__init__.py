"""Real processes with one trouble each, all traced: the ground truth for the verdict of the analysis."""

__all__: list[str] = []
