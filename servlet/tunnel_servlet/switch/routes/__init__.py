"""Routes and the services to which they lead: opening, resuming, waiting and releasing."""

__all__: list[str] = []
