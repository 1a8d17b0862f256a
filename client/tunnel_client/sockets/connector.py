"""What connects the sockets of a Runtime: an attachment, and the pumps of sockets. It runs in the loop thread alone."""

from __future__ import annotations

import _socket
import asyncio
import errno
import os
import socket
import stat
import struct
from contextlib import suppress

from tunnel import (
    Attachment,
    AttachmentStats,
    DeniedError,
    NotAuthenticatedError,
    RefusedError,
    RejectReason,
    UnreachableError,
)
from tunnel.splice import Side, splice
from tunnel_client.borrowed.pair import name_of, widen
from tunnel_client.settings import RelaySettings
from tunnel_client.sockets.pump import FarSide, NearSide

__all__ = ["Connector", "ResolveError", "TargetTimeoutError", "errno_of"]

_RESET = struct.pack("ii", 1, 0)  # SO_LINGER: closing sends a reset
_DESCRIPTORS = ("/proc/self/fd", "/dev/fd")


class ResolveError(RefusedError, socket.gaierror):
    """The far side does not know the name: what getaddrinfo raises elsewhere."""

    def __init__(self, text: str) -> None:
        super().__init__(text, RejectReason.NAME_NOT_RESOLVED)
        self.errno = socket.EAI_NONAME


class TargetTimeoutError(RefusedError, TimeoutError):
    """The target did not answer the exit."""

    def __init__(self, text: str) -> None:
        super().__init__(text, RejectReason.TIMED_OUT)


_NUMBERS: tuple[tuple[type[OSError], int], ...] = (
    (UnreachableError, errno.ENETUNREACH),
    (NotAuthenticatedError, errno.EACCES),
    (DeniedError, errno.EACCES),
    (ConnectionResetError, errno.ECONNRESET),
    (TimeoutError, errno.EAGAIN),  # what connect_ex says when its time is over
)


def errno_of(error: OSError) -> int:
    """The number for callers that know numbers alone."""
    if error.errno:
        return error.errno
    return next((number for kind, number in _NUMBERS if isinstance(error, kind)), errno.ECONNREFUSED)


def expected(error: OSError) -> OSError:
    """The same error as one that socket code expects."""
    if isinstance(error, RefusedError):
        if error.reason is RejectReason.NAME_NOT_RESOLVED:
            return ResolveError(str(error))
        if error.reason is RejectReason.TIMED_OUT:
            return TargetTimeoutError(str(error))
    if not error.errno and not isinstance(error, TimeoutError):
        error.errno = errno_of(error)
    return error


class Connector:
    """Connects sockets at one relay, in the name of one user. It attaches with the first connection."""

    def __init__(self, settings: RelaySettings, linger: float) -> None:
        self.nears: dict[NearSide, None] = {}
        self._settings = settings
        self._linger = linger
        self._attachment: Attachment | None = None
        self._starting: asyncio.Task[Attachment] | None = None

    async def attach(self) -> Attachment:
        """Attach now instead of at the first connect; raises the transport's own errors."""
        return await self._attached()

    async def open(self, host: str, port: int | None, seconds: float | None) -> FarSide:
        """A connection through the tunnel that nobody has joined. Raises what socket code expects."""
        label = host if port is None else f"{host}:{port}"
        try:
            async with asyncio.timeout(seconds):
                attachment = await self._attached()
                return (await attachment.create_connection(FarSide, host, port))[1]
        except TimeoutError:
            raise TimeoutError(f"{label}: no answer within {seconds} s{self._trouble()}") from None
        except OSError as error:
            raise expected(error) from None

    async def join(self, far: FarSide, near: socket.socket, skip: int = 0) -> None:
        """Splice the two."""
        try:
            near.setblocking(False)
            side = NearSide(near, skip, self._ended)
            self.nears[side] = None
            await asyncio.get_running_loop().create_connection(lambda: side, sock=near)
            splice(side, far)
        except BaseException:
            far.abort()
            near.close()
            raise

    async def open_and_join(
        self, host: str, port: int | None, seconds: float | None, near: socket.socket, skip: int
    ) -> None:
        """For a socket that waits: the pair exists, the tunnel follows. It sees a reset when nothing comes of it."""
        try:
            far = await self.open(host, port, seconds)
        except BaseException:
            near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
            near.close()
            raise
        widen(near)
        await self.join(far, near, skip)

    async def close(self) -> None:
        """Let what the application wrote arrive, for `linger` seconds at most; then end everything."""
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        if self._attachment is None:
            return
        if self.nears:
            # The process ends: what it still holds open counts as closed, or its last bytes would stay in the kernel.
            names = (near.names() for near in self.nears if not near.is_eof)
            shut_writing({pair for pair in names if pair is not None})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger / 2):
                    await asyncio.gather(*(near.ended_reading for near in list(self.nears)))
        await self._attachment.close()

    async def stats(self) -> AttachmentStats | None:
        """How the attachment is; None while there is none."""
        starting = self._starting
        if self._attachment is None or starting is None or not starting.done() or not _serves(starting):
            return None
        return self._attachment.stats()

    def leave_to_parent(self) -> None:
        """In a forked child: its copies of our descriptors would keep the parent's sockets from ending."""
        for near in self.nears:
            near.leave()

    def _ended(self, near: Side, error: Exception | None) -> None:
        assert isinstance(near, NearSide)
        self.nears.pop(near, None)

    async def _attached(self) -> Attachment:
        starting = self._starting
        if starting is None or (starting.done() and not _serves(starting)):
            starting = self._starting = asyncio.get_running_loop().create_task(self._start())
            starting.add_done_callback(_serves)  # so that asyncio does not report an error that was never retrieved
        return await asyncio.shield(starting)

    async def _start(self) -> Attachment:
        old, self._attachment = self._attachment, self._settings.attach(linger=self._linger / 2)
        if old is not None and old.refusal is not None:
            await old.close()
        await self._attachment.start()
        return self._attachment

    def _trouble(self) -> str:
        attachment = self._attachment
        what = "nothing answers"
        if attachment is not None:
            if attachment.is_attached:
                return ""
            with suppress(RuntimeError):  # it has not begun
                what = attachment.stats().trouble or what
        return f"; the relay {self._settings.url} is not reached ({what}): check its URL, the proxy, the relay"


def _serves(starting: asyncio.Task[Attachment]) -> bool:
    """Whether a finished start has brought an attachment that the relay still wants."""
    return not starting.cancelled() and starting.exception() is None and starting.result().refusal is None


def shut_writing(names: set[tuple[str, str]]) -> None:
    """End the writing of every socket of this process that has one of these pairs of names (its own, its peer's)."""
    directory = next((path for path in _DESCRIPTORS if os.path.isdir(path)), None)
    for text in os.listdir(directory) if directory else ():
        with suppress(OSError):
            if not stat.S_ISSOCK(os.fstat(int(text)).st_mode):
                continue
            copy = _socket.socket(fileno=os.dup(int(text)))
            try:
                if copy.family in (socket.AF_INET, socket.AF_INET6) and _names(copy) in names:
                    copy.shutdown(socket.SHUT_WR)
            finally:
                copy.close()


def _names(sock: _socket.socket) -> tuple[str, str]:
    return name_of(sock.getsockname()), name_of(sock.getpeername())
