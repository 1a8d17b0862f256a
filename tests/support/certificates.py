"""The certificates of the tests: `ca.pem`, and `server.pem` and `client.pem`, each with its key."""

from pathlib import Path

__all__ = ["TLS"]

TLS = Path(__file__).parent / "tls"

for _file in TLS.glob("*.pem"):
    _file.chmod(0o600)  # a checkout makes them readable for all, and a key that others can read is refused
