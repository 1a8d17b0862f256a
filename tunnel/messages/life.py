"""What begins and ends with a `with` block, said once for all of the message layer."""

from types import TracebackType
from typing import Self

__all__ = ["Closeable", "Startable"]


class Closeable:
    """`with` it: closed at the end."""

    def close(self) -> None:
        raise NotImplementedError

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class Startable:
    """`async with` it: started at the beginning, closed at the end."""

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
