"""What an endpoint learns of the path: round trip, sizes of bodies, number of lanes, holds, rates, formats."""

__all__: list[str] = []
