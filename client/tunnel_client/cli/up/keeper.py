"""Serves one entry of the file of `tunnel up` on the present attachment. A failed entry is retried; others go on."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Callable
from contextlib import suppress

from tunnel import Attachment, DeniedError, RateLimit, TunnelError
from tunnel_client.cli.up.file import Entry
from tunnel_client.cli.up.kinds import KINDS, Opened
from tunnel_client.errors import UsageError
from tunnel_client.forward.traffic import Traffic
from tunnel_client.status import EntryReport

__all__ = ["Keeper", "Say", "State"]

_AGAIN_S = 5.0  # pause before another try, after a failure such as a port that is taken
_AGAIN_DENIED_S = 30.0  # pause before a name that the relay refused is asked for again

Say = Callable[..., None]
"""Writes one line: `say(event, text, **fields)`."""


class State(enum.Enum):
    """The state of an entry."""

    WAITING = "waiting"  # for the relay
    SERVING = "serving"
    FAILED = "failed"  # for a reason of its own; it is tried again


class Keeper:
    """One entry. `start` serves it on an attachment until `stop`; then it waits for the next attachment."""

    def __init__(self, entry: Entry, say: Say) -> None:
        self.entry = entry
        self.state = State.WAITING
        self.error = ""
        self.leads = KINDS[entry.kind].leads(entry.part)
        self._say = say
        self._traffic: Traffic | None = None
        self._attachment: Attachment | None = None
        self._opened: Opened | None = None
        self._task: asyncio.Task[None] | None = None

    def start(self, attachment: Attachment) -> None:
        """Serve the entry on this attachment, which has attached."""
        self._attachment = attachment
        self._traffic = Traffic(attachment, self._limit(attachment))
        self._task = asyncio.get_running_loop().create_task(self._keep(attachment, self._traffic))

    async def stop(self) -> None:
        """Free the port or the name, and reset the connections."""
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task
        self._task = self._traffic = self._attachment = None
        self.state, self.error = State.WAITING, ""

    async def stop_listening(self) -> None:
        """Free the port or the name. Open connections go on."""
        if self._opened is not None:
            await self._opened.listening.stop_listening()

    def change_rate(self, entry: Entry) -> None:
        """Replace the entry by this one, which differs at most in its rate. Open connections share the new rate."""
        is_other = self.entry.part.rate != entry.part.rate
        self.entry = entry
        if is_other and self._traffic is not None and self._attachment is not None:
            self._traffic.limit_rate(self._limit(self._attachment))

    @property
    def traffic(self) -> Traffic | None:
        """The traffic on the present attachment."""
        return self._traffic

    def report(self) -> EntryReport:
        """Return the state for `tunnel status` and for the lines on a terminal."""
        found = EntryReport(self.entry.id, self.leads, self.state.value, self.error)
        if self._traffic is not None:
            totals = self._traffic.totals()
            found.error = self.error or self._traffic.failure
            found.connections_open = totals.connections_open
            found.connections = totals.connections
            found.connections_failed = totals.connections_failed
            found.bytes_up, found.bytes_down = totals.bytes_up, totals.bytes_down
        return found

    def _limit(self, attachment: Attachment) -> RateLimit | None:
        return RateLimit.parse(self.entry.part.rate, attachment.rate_limit)

    async def _keep(self, attachment: Attachment, traffic: Traffic) -> None:
        while True:
            pause_s = _AGAIN_S
            try:
                async with KINDS[self.entry.kind].open(self.entry.part, attachment, traffic) as opened:
                    self._serves(opened)
                    raise await opened.wait_for_end()
            except DeniedError as error:
                pause_s = _AGAIN_DENIED_S
                self._fails(str(error), pause_s)
            except (UsageError, TunnelError, OSError, ValueError) as error:
                self._fails(str(error), pause_s)
            except Exception as error:  # a defect in one entry must not end the others
                self._fails(f"internal error: {type(error).__name__}: {error}", pause_s)
            finally:
                self._opened = None
            await asyncio.sleep(pause_s)

    def _serves(self, opened: Opened) -> None:
        self._opened = opened
        self.state, self.error, self.leads = State.SERVING, "", opened.leads
        self._say("listening", f"{self.entry.id}: {opened.leads}", entry=self.entry.id, leads=opened.leads)

    def _fails(self, text: str, pause_s: float) -> None:
        """Note the failure, and say why, unless the reason is still the same."""
        is_new = text != self.error
        self.state, self.error = State.FAILED, text
        if is_new:
            again = f"trying again every {pause_s:g} s"
            self._say("not_served", f"{self.entry.id}: {text}; {again}", is_bad=True, entry=self.entry.id)
