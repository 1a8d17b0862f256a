"""Most folders mirror the source; `sim` is the deterministic simulator, `support` holds helpers for several files."""

__all__: list[str] = []
