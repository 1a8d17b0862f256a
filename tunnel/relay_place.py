"""One of several relays, as an endpoint at all of them sees it: present there, refused, or to be asked again."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable

from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.errors import TunnelError
from tunnel.refusals import asked_again_s

__all__ = ["RelayPlace"]

_log = logging.getLogger(__name__)


class RelayPlace:
    """The presence at one relay. After a refusal, another endpoint takes it."""

    def __init__(self, url: str, make: Callable[[], AttachedEndpoint]) -> None:
        self.url = url
        self.make = make
        self.endpoint = make()
        self.error: TunnelError | None = None  # the attachment ended with it, before the relay had ever answered
        self.starting: asyncio.Task[None] | None = None
        self.has_begun = False  # the endpoint has begun to attach
        self.asking: asyncio.TimerHandle | None = None  # when the relay is asked again for what it has refused
        self._said: dict[str, str] = {}  # what the relay refuses, and why, as the log says it

    @property
    def refusal(self) -> TunnelError | None:
        """The error with which this relay ended the attachment for good."""
        return self.endpoint.refusal or self.error

    @property
    def is_present(self) -> bool:
        return self.has_begun and self.refusal is None and self.endpoint.is_attached

    def ask_later(self, error: Exception, ask: Callable[[RelayPlace], None], what: str) -> None:
        """Say what the relay has refused, and ask it again after a while, in which its rules may have changed."""
        again_s = asked_again_s(error)
        if self.asking is None and again_s < math.inf:
            self.asking = asyncio.get_running_loop().call_later(again_s, ask, self)
        again = f"asked again every {again_s:g} s while another relay serves"
        self.say(what, error, again if again_s < math.inf else "not asked again with this password")

    def say(self, what: str, error: Exception, again: str) -> None:
        """Say what the relay refuses, unless this was said before."""
        if self._said.get(what) != str(error):
            self._said[what] = str(error)
            _log.warning("%s %s: %s; %s", self.url, what, error, again)

    def on_accepted(self, what: str) -> None:
        """If the relay refuses this once more, it is to be said."""
        self._said.pop(what, None)

    def stop_asking(self) -> None:
        if self.asking is not None:
            self.asking.cancel()
            self.asking = None

    @property
    def trouble(self) -> str:
        if not self.has_begun:
            return ""
        return str(self.error) if self.error is not None else self.endpoint.stats().trouble
