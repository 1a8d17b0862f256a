"""End-to-end encryption of a stream: TLS 1.3 inside the tunnel, between the initiator and the endpoint that accepts it.

`connection` puts the TLS session of `tls` between a transport and its connection. `binding` has the first bytes inside.
`decisions` and `trust` say when a stream is encrypted, and which keys are accepted; `settings` applies them to one
attachment. `transport` makes the handshake, and `turns` says when. `keys` and `known_peers` have the files, and
`fingerprint` names the keys.
"""

__all__: list[str] = []
