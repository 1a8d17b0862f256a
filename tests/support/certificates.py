"""The certificates of the tests: `ca.pem`, and `server.pem` and `client.pem`, each with its key."""

import ssl
from pathlib import Path

__all__ = ["CA", "TLS", "server_tls"]

TLS = Path(__file__).parent / "tls"
CA = str(TLS / "ca.pem")

for _file in TLS.glob("*.pem"):
    _file.chmod(0o600)  # a checkout makes them readable for all, and a key that others can read is refused


def server_tls(*, client_certificates: bool = False) -> ssl.SSLContext:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(TLS / "server.pem")
    if client_certificates:
        context.load_verify_locations(CA)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
