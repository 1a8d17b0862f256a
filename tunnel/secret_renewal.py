"""The replacement of the secrets of an attachment while it is in use."""

from collections.abc import Callable, Mapping
from typing import Protocol

__all__ = ["Renew"]


class Renew(Protocol):
    """Passes new secrets on to the carrier of an attachment."""

    def __call__(
        self, token: str | None, headers: Mapping[str, str], proxy: str | None, refused: Callable[[int], None]
    ) -> None: ...
