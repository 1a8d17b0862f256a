"""Tests with another endpoint than ours (examples/node), and of the connection in transcript.txt."""

__all__: list[str] = []
