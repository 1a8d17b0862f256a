"""Questions of `tunnel doctor` to the path: single exchanges, a link, the certificate."""

__all__: list[str] = []
