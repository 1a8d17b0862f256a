"""The tests mirror the source; `sim` is the deterministic simulator, `support` what several test files share."""

__all__: list[str] = []
