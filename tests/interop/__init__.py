"""Tests with another endpoint than ours (examples/node), and of the transcript in docs/TRANSCRIPT.md."""

__all__: list[str] = []
