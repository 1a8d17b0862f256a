"""Services for people without the tunnel: their ports and names, requests and connections."""

__all__: list[str] = []
