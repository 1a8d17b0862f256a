"""What is kept until it is sent or read: logs, outboxes and inboxes on disk, and a bounded queue in memory."""

__all__: list[str] = []
