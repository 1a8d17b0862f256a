"""Access control: tokens, rules, grants, addresses. These modules decide and do no I/O."""

__all__: list[str] = []
