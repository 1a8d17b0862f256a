"""The way to the relay: URL, proxy, gateway, authentication and TLS, and the words for what fails there."""

__all__: list[str] = []
