"""What imports nothing of the project and reaches the machine: its clock, files, names, sockets and tasks."""

__all__: list[str] = []
