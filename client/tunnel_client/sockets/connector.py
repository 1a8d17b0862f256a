"""The connector of a Runtime: its attachment and the sockets joined to it. It runs only in the loop thread."""

from __future__ import annotations

import _socket
import asyncio
import errno
import os
import socket
import stat
from contextlib import suppress

from tunnel import Attachment, AttachmentStats, RefusedError, RejectReason, UnreachableError
from tunnel.ground.special_targets import target_text
from tunnel.refusals import OR_WAIT
from tunnel.streams.splice import Side, splice
from tunnel.system.linger import reset_when_closed
from tunnel_client.borrowed.pair import name_of, widen
from tunnel_client.settings import RelaySettings
from tunnel_client.sockets.pump import FarSide, NearSide

__all__ = ["Connector", "ResolveError", "TargetTimeoutError", "errno_of"]

_DESCRIPTORS = ("/proc/self/fd", "/dev/fd")


class ResolveError(RefusedError, socket.gaierror):
    """The far side cannot resolve the name. It is a socket.gaierror, as code that uses getaddrinfo expects."""

    def __init__(self, text: str) -> None:
        super().__init__(text, RejectReason.NAME_NOT_RESOLVED)
        self.errno = socket.EAI_NONAME


class TargetTimeoutError(RefusedError, TimeoutError):
    """The target did not answer the exit in time."""

    def __init__(self, text: str) -> None:
        super().__init__(text, RejectReason.TIMED_OUT)


def errno_of(error: OSError) -> int:
    """Return the number of the error, for callers that know only numbers. A timeout without one counts as EAGAIN, as it
    does for `connect_ex` of the standard library.
    """
    return error.errno or (errno.EAGAIN if isinstance(error, TimeoutError) else errno.ECONNABORTED)


def expected(error: OSError) -> OSError:
    """Return the error in the form that socket code expects."""
    if isinstance(error, RefusedError):
        if error.reason is RejectReason.NAME_NOT_RESOLVED:
            return ResolveError(str(error))
        if error.reason is RejectReason.TIMED_OUT:
            return TargetTimeoutError(str(error))
    return error


class Connector:
    """Connects sockets through one relay, for one user. It attaches when the first of them connects."""

    def __init__(self, settings: RelaySettings, linger: float) -> None:
        self.nears: dict[NearSide, None] = {}
        self.wait: bool | None = None  # as in `tunnel.attach`
        self._settings = settings
        self._linger = linger
        self._attachment: Attachment | None = None
        self._starting: asyncio.Task[Attachment] | None = None
        self._opening = 0  # connections that are being opened
        self._changed = asyncio.Event()  # set when a socket has ended, or an attempt to open a connection
        self._is_closed = False

    async def attach(self) -> Attachment:
        """Attach now instead of at the first connect. Raises the library's own errors, unlike `open`."""
        return await self._attached()

    async def open(self, host: str, port: int | None, seconds: float | None) -> FarSide:
        """Open a connection through the tunnel, not yet joined to a socket. Raises errors that socket code expects."""
        label = target_text(host, port)
        try:
            async with asyncio.timeout(seconds):
                attachment = await self._attached()
                return (await attachment.create_connection(FarSide, host, port))[1]
        except TimeoutError:
            raise TimeoutError(f"{label}: no answer within {seconds} s{self._trouble()}") from None
        except OSError as error:
            raise expected(error) from None

    async def join(self, far: FarSide, near: socket.socket, skip: int = 0) -> None:
        """Splice a connection through the tunnel and our end of a loopback pair. If that fails, end both."""
        side = NearSide(near, skip, self._ended)
        self.nears[side] = None
        try:
            near.setblocking(False)
            await asyncio.get_running_loop().create_connection(lambda: side, sock=near)
            splice(side, far)
        except BaseException:
            self._ended(side, None)
            far.abort()
            near.close()
            raise

    async def open_and_join(
        self, host: str, port: int | None, seconds: float | None, near: socket.socket, skip: int
    ) -> None:
        """Open a connection through the tunnel and join it to `near`, our end of an existing loopback pair.

        If the connection is not opened, `near` is reset, so that the socket at the other end of the pair sees it.
        """
        self._opening += 1
        try:
            far = await self.open(host, port, seconds)
        except BaseException:
            reset_when_closed(near)
            near.close()
            raise
        else:
            widen(near)
            await self.join(far, near, skip)
        finally:
            self._opening -= 1
            self._changed.set()

    async def retire(self) -> None:
        """Close when the last socket has ended."""
        while (self.nears or self._opening) and not self._is_closed:
            self._changed.clear()
            await self._changed.wait()
        await self.close()

    async def close(self) -> None:
        """Wait at most `linger` seconds for what the application wrote to arrive, then end everything."""
        self._is_closed = True
        self._changed.set()
        if self._starting is not None and not self._starting.done():
            self._starting.cancel()
        if self._attachment is None:
            return
        if self.nears:
            # Sockets that the application still holds open count as closed from now on. Otherwise their last bytes
            # would stay in the kernel.
            names = (near.names() for near in self.nears if not near.is_eof)
            shut_writing({pair for pair in names if pair is not None})
            with suppress(TimeoutError):
                async with asyncio.timeout(self._linger / 2):
                    await asyncio.gather(*(near.ended_reading for near in list(self.nears)))
        await self._attachment.close()

    async def stats(self) -> AttachmentStats | None:
        """Return the statistics of the attachment, or None while there is none."""
        starting = self._starting
        if self._attachment is None or starting is None or not starting.done() or not _serves(starting):
            return None
        return self._attachment.stats()

    def leave_to_parent(self) -> None:
        """In a forked child, close its copies of the descriptors: they would keep the parent's sockets from ending."""
        for near in self.nears:
            near.leave()

    def _ended(self, near: Side, error: Exception | None) -> None:
        assert isinstance(near, NearSide)
        self.nears.pop(near, None)
        self._changed.set()

    async def _attached(self) -> Attachment:
        starting = self._starting
        if starting is None or (starting.done() and not _serves(starting)):
            starting = self._starting = asyncio.get_running_loop().create_task(self._start())
            starting.add_done_callback(_serves)  # so that asyncio does not report an error that was never retrieved
        return await asyncio.shield(starting)

    async def _start(self) -> Attachment:
        old, self._attachment = self._attachment, self._settings.attach(linger=self._linger / 2, wait=self.wait)
        if old is not None and old.refusal is not None:
            await old.close()
        try:
            await self._attachment.start()
        except UnreachableError as error:
            raise UnreachableError(str(error).removesuffix(OR_WAIT)) from None  # sockets have no such argument
        return self._attachment

    def look(self) -> tuple[str, str] | None:
        """Return where the relay is, and why it does not answer; the second is empty if that is not known. Return None
        if it has refused the attachment.

        Raises RuntimeError while nothing is being attached.
        """
        if self._attachment is None:
            raise RuntimeError("no socket has asked for the relay yet")
        if self._attachment.refusal is not None:
            return None
        stats = self._attachment.stats()
        return stats.carrier.partition(" ")[2], stats.trouble

    def _trouble(self) -> str:
        attachment = self._attachment
        what = "nothing answers"
        if attachment is not None:
            if attachment.is_attached:
                return ""
            with suppress(RuntimeError):  # the attachment has not started yet
                what = attachment.stats().trouble or what
        return f"; the relay {self._settings.url} cannot be reached ({what}): check its URL, the proxy, the relay"


def _serves(starting: asyncio.Task[Attachment]) -> bool:
    """Return whether a finished start resulted in an attachment that the relay still accepts."""
    return not starting.cancelled() and starting.exception() is None and starting.result().refusal is None


def shut_writing(names: set[tuple[str, str]]) -> None:
    """Shut down writing on every socket of this process that has one of these pairs of names (its own, its peer's)."""
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
