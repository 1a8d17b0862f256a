"""The commands of `tunnel`, one module each: `add` adds the command and its arguments to the parser."""

__all__: list[str] = []
