"""The tests mirror the source; `sim` is the deterministic simulator, `support` holds helpers of several test files."""

__all__: list[str] = []
