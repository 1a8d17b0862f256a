"""The endpoint's half of lanes: it attaches, pushes, pulls, repeats, and judges what answers mean."""

__all__: list[str] = []
