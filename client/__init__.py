"""The socket shim and the command `tunnel`: what runs behind the firewall."""

__all__: list[str] = []
