"""End-to-end encryption of a stream: TLS 1.3 inside the tunnel, between the initiator and the endpoint that accepts it.

`connection` puts TLS between a transport and its connection, over the TLS session of `tls`. `binding` has the first
bytes inside, `decisions` and `trust` say when a stream is encrypted and with which keys, `keys` and `known_peers` are
the files.
"""

__all__: list[str] = []
