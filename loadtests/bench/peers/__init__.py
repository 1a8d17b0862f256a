"""What survives, and how fast it is: the tunnel beside others that lead through HTTP."""

__all__: list[str] = []
