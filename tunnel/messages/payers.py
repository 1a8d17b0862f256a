"""The payers of the work and the memory of connections. A server with users passes a payer that charges them."""

from __future__ import annotations

from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any, TypeVar

__all__ = ["FREE", "Payer"]

_T = TypeVar("_T")


class Payer:
    """Pays for nothing: this is for connections whose two ends trust each other."""

    disk_reads: AbstractAsyncContextManager[object] = nullcontext()
    """Held while the disk is read for the payer."""

    async def turn(self) -> None:
        """Wait until it is the payer's turn at the processor."""

    def charge_for(self, work: Coroutine[Any, Any, _T]) -> Coroutine[Any, Any, _T]:
        """Return work whose processor time is charged."""
        return work

    def hold(self, size: int) -> bool:
        """Charge bytes that are kept in memory. Return False, and charge nothing, if they would be too many."""
        return True

    def free(self, size: int) -> None:
        """Give charged bytes back."""


FREE = Payer()
