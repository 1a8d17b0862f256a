"""Packets of any size over one stream: they are split, sent by priority, joined and handled."""

__all__: list[str] = []
