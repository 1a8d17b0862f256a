"""The socket shim: what runs behind the firewall. Empty so far; `tunnel` has what exists."""

__all__: list[str] = []
