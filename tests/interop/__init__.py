"""Tests with another endpoint than ours (tests/interop/node), and of the connection in transcript.txt."""

__all__: list[str] = []
