"""Says what an attachment waits for, while it is being started, and while a connection has no answer: a library prints
nothing, and is not silent, either."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial

from tunnel.core.constants import MOVED_US, SECOND_US
from tunnel.errors import SESSION_STICKINESS, TunnelError
from tunnel.ground.defaults import ATTACHING_LOG
from tunnel.ground.special_targets import target_text

__all__ = ["UnansweredConnects", "WaitingLog", "log_move"]

_QUIET_S = 2.0
_ASK_S, _FIRST_ANSWER_S = 1.5, 0.5  # so the first news comes within 2 s, whether or not the relay answers
_ASKED_AT_ONCE = 16  # each question is a CONNECT; a client may wait for a thousand targets
_AGAIN_S, _AGAIN_S_MAX = 3.7, 60.0  # the second question finds an exit that the relay calls silent, after 5 s
_MOVED = (
    "several relays answer at this address, and this endpoint was moved to another one: its open connections end in "
    "%d s, except those whose other end is moved, too; %s"
)
_log = logging.getLogger(ATTACHING_LOG)
_moves = logging.getLogger(__name__)


def log_move() -> None:
    """Log that the endpoint of open connections was moved to another relay (PROTOCOL 6.3)."""
    _moves.warning(_MOVED, MOVED_US // SECOND_US, SESSION_STICKINESS)


class WaitingLog:
    """Logs after 2 s, and whenever the time has doubled since, that no relay answers at `where`, and the last trouble.

    It begins at once, within the event loop, and ends with `stop`.
    """

    def __init__(self, where: str, trouble: Callable[[], str]) -> None:
        self._where, self._trouble = where, trouble
        self._waited_s = _QUIET_S
        self._timer = asyncio.get_running_loop().call_later(_QUIET_S, self._look)

    def stop(self) -> None:
        """Log no more."""
        self._timer.cancel()

    def _look(self) -> None:
        text = self._trouble() or "no answer"
        _log.warning("no relay has answered at %s for %.0f s (%s): still trying", self._where, self._waited_s, text)
        self._timer = asyncio.get_running_loop().call_later(self._waited_s, self._look)
        self._waited_s *= 2


class UnansweredConnects:
    """Finds out why connections have no answer from their targets.

    It asks the relay (`ask`: host, port, and how long to wait) 1.5 s after the first of the connections to a target
    that are unanswered, and at longer and longer intervals from then on. It tells (`tell`: target, seconds, and why,
    empty if that is not known) each answer. It asks about 16 targets at once at most; why others wait is not known.
    """

    def __init__(
        self, ask: Callable[[str, int | None, float], Awaitable[str]], tell: Callable[[str, float, str], None]
    ) -> None:
        self._ask, self._tell = ask, tell
        self._asking = 0
        self._watches: dict[tuple[str, int | None], _Watch] = {}

    @contextmanager
    def watch(self, host: str, port: int | None) -> Iterator["_Watch"]:
        """Ask, while the block waits for the answer to a connection. Its value has the newest reason, in `why`."""
        watch = self._watches.get((host, port))
        if watch is None:
            watch = self._watches[host, port] = _Watch(
                partial(self._ask_if_few, host, port), partial(self._tell, target_text(host, port))
            )
        watch.count += 1
        try:
            yield watch
        finally:
            watch.count -= 1
            if not watch.count:
                del self._watches[host, port]
                watch.stop()

    async def _ask_if_few(self, host: str, port: int | None, seconds: float) -> str:
        if self._asking >= _ASKED_AT_ONCE:
            return ""
        self._asking += 1
        try:
            return await self._ask(host, port, seconds)
        finally:
            self._asking -= 1


class _Watch:
    """The connections to one target that have no answer."""

    def __init__(self, ask: Callable[[float], Awaitable[str]], tell: Callable[[float, str], None]) -> None:
        self.count = 0
        self.why = ""
        self._ask, self._tell = ask, tell
        loop = asyncio.get_running_loop()
        self._began_s = loop.time()
        self._task: asyncio.Task[None] | None = None
        self._timer = loop.call_later(_ASK_S, self._start)  # most connections are answered sooner, without a task

    def stop(self) -> None:
        self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def _start(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._watch())

    async def _watch(self) -> None:
        answer_s, pause_s = _FIRST_ANSWER_S, _AGAIN_S
        while True:
            with suppress(TunnelError, RuntimeError):
                self.why = await self._ask(answer_s)
            self._tell(asyncio.get_running_loop().time() - self._began_s, self.why)
            await asyncio.sleep(pause_s)
            answer_s, pause_s = _AGAIN_S, min(2 * pause_s, _AGAIN_S_MAX)
