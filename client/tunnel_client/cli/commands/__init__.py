"""The commands of `tunnel`, one module each: `add` gives it its arguments, and what runs is imported when it runs."""

__all__: list[str] = []
