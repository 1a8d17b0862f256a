"""One half of a link, which is the same at both ends: bytes in, batches and receipts out."""

__all__: list[str] = []
