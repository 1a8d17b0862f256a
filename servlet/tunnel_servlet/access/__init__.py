"""Who may do what: tokens, rules, grants, addresses. Values and decisions; no file is read here."""

__all__: list[str] = []
