"""Traced transfers between real processes, with one trouble each: the ground truth for the verdict of the analysis."""

__all__: list[str] = []
