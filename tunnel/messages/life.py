"""Base classes for objects of the message layer that are used in a `with` block."""

from types import TracebackType
from typing import Self

from tunnel.ground.unused import WarnsIfUnused

__all__ = ["Closeable", "Startable"]


class Closeable:
    """A base class with `close`, which is called at the end of a `with` block."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Startable(WarnsIfUnused):
    """A base class with `start` and `close`, which are called at the start and end of an `async with` block."""

    _advice = "use it in `async with`, or call `start()` and later `await close()`"

    def start(self) -> None:
        raise NotImplementedError

    async def close(self) -> None:
        raise NotImplementedError

    async def __aenter__(self) -> Self:
        self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()
