"""Notes when tokens are used, and lets a single-use token serve one endpoint.

A request costs a look into a table. What the table has learned is stored once a minute, in a thread: after a crash, the
time of the last use may be a minute too old. A single-use token is stored as used before its endpoint attaches.
"""

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import structlog

from tunnel.wire import Attach, Buffer, Exchange, attachment_id, decode_envelope
from tunnel_servlet.access.tokens import USED, Identity, Key
from tunnel_servlet.web.tokens.files import TokenUseFiles, endpoint_hash, write_instant

__all__ = ["NotStoredError", "TokenUses"]

_MINUTE_S = 60
_log = structlog.get_logger("relay")


class NotStoredError(Exception):
    """The use of a single-use token cannot be stored, so it must not be used. The text says why, and what to do."""


class TokenUses:
    """The uses of tokens. Nothing is stored if `folder` is empty.

    `key` returns the record of a token, `now_s` the time since the epoch, and `present` those who use a token now.
    """

    def __init__(
        self,
        folder: str,
        key: Callable[[str], Key | None],
        now_s: Callable[[], float],
        present: Callable[[], set[Identity]],
    ) -> None:
        self._files = TokenUseFiles(Path(folder)) if folder else None
        self._key = key
        self._now_s = now_s
        self._present = present
        self._last: dict[str, str] = {}
        self._minutes: dict[str, int] = {}
        self._is_changed = False
        self._is_failing = False
        self._owners: dict[str, asyncio.Future[str]] = {}  # by single-use token: the hash of the endpoint that has it
        self._storing: asyncio.Task[None] | None = None

    # --- last use

    def note(self, identity: Identity) -> None:
        """Note that the token is used now."""
        minute = int(self._now_s()) // _MINUTE_S
        if self._minutes.get(identity.key_id) != minute and self._key(identity.key_id) is not None:
            self._minutes[identity.key_id] = minute
            self._last[identity.key_id] = write_instant(minute * _MINUTE_S)
            self._is_changed = True

    def start(self, present: Collection[str]) -> None:
        """Read what is stored, and store changes once a minute from now on. `present`: the key ids of all tokens."""
        if self._files is not None:
            self._last = self._files.last_uses()
            if present:  # without a token, the tokens file may be lost, and come back
                self._files.forget(self._now_s(), present)
            self._storing = asyncio.get_running_loop().create_task(self._store_often())

    async def close(self) -> None:
        """Store for the last time."""
        if self._storing is not None:
            self._storing.cancel()
            await asyncio.gather(self._storing, return_exceptions=True)
            await self.store()

    async def store(self) -> None:
        """Store the last uses, if they have changed. An error is logged once, until they are stored again."""
        for identity in self._present():
            self.note(identity)
        if not self._is_changed or self._files is None:
            return
        self._last = {key_id: used for key_id, used in self._last.items() if self._key(key_id) is not None}
        self._minutes = {key_id: minute for key_id, minute in self._minutes.items() if key_id in self._last}
        self._is_changed = False
        try:
            await asyncio.to_thread(self._files.store_last_uses, dict(self._last))
        except OSError as error:
            self._is_changed = True
            if not self._is_failing:
                text = f"{self._files.folder}: when tokens were last used cannot be stored: {error.strerror}"
                _log.warning("token_use_not_stored", text=f"{text}: let the relay write into this folder")
            self._is_failing = True
        else:
            self._is_failing = False

    async def _store_often(self) -> None:
        while True:
            await asyncio.sleep(_MINUTE_S)
            await self.store()

    # --- single use

    def is_for_single_use(self, identity: Identity) -> bool:
        """Whether `why_not` must be asked about the token."""
        key = self._key(identity.key_id)
        return key is not None and key.single_use

    async def why_not(self, identity: Identity, body: Buffer) -> str:
        """Return why the token may not serve the endpoint of this request; an empty text if it may.

        If the token is for a single use and unused, it is this endpoint's from now on. Raise NotStoredError if that
        cannot be stored.
        """
        key = self._key(identity.key_id)
        if key is None or not key.single_use:
            return ""
        message = decode_envelope(body)
        if isinstance(message, Attach):
            endpoint = attachment_id(message.secret)
        elif isinstance(message, Exchange):
            endpoint = message.attachment_id
        else:
            return ""  # the switch refuses it
        owner = self._owners.get(key.id)
        if owner is None:
            owner = self._owners[key.id] = asyncio.ensure_future(self._use(key, endpoint))
            owner.add_done_callback(lambda done: self._used(key, done))
        return "" if await asyncio.shield(owner) == endpoint_hash(endpoint) else USED

    def may_link(self, identity: Identity, endpoint: bytes) -> bool:
        """Whether the token may serve a link of this endpoint, which has attached before."""
        key = self._key(identity.key_id)
        if key is None or not key.single_use:
            return True
        owner = self._owners.get(key.id)
        return owner is not None and owner.done() and owner.result() == endpoint_hash(endpoint)

    def forget_others(self) -> None:
        """Forget the tokens that do not exist any more."""
        self._owners = {key_id: owner for key_id, owner in self._owners.items() if self._key(key_id) is not None}

    async def _use(self, key: Key, endpoint: bytes) -> str:
        if self._files is None:
            return endpoint_hash(endpoint)
        try:
            return await asyncio.to_thread(self._files.use, key.id, endpoint, key.expires)
        except (OSError, ValueError) as error:
            why = getattr(error, "strerror", None) or error
            text = f"the relay cannot store that this token for a single use is used ({why}): tell its operator"
            _log.error("token_use_not_stored", key=key.id, folder=str(self._files.folder), text=text)
            raise NotStoredError(text) from None

    def _used(self, key: Key, done: asyncio.Future[str]) -> None:
        if done.cancelled() or done.exception() is not None:
            self._owners.pop(key.id, None)  # the endpoint asks again
        else:
            _log.info("token_used", key=key.id)
