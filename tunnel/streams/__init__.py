"""Connections as a program uses them: transports, streams, listeners, datagrams, and splices to sockets."""

__all__: list[str] = []
