"""What stands between this machine and a relay, found out step by step: `tunnel doctor`."""

__all__: list[str] = []
