"""Compares the tunnel with other tunnels over HTTP: whether connections survive faults, and the speed."""

__all__: list[str] = []
