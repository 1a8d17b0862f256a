"""`tunnel up`: several forwards, services and proxies that one file names, in one process and one attachment."""

__all__: list[str] = []
