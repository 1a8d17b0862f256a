"""An attachment of a person who has signed in at an identity provider: each token is renewed before it expires.

All commands of this user share the sign-in. A provider may accept each refresh token once, so a lock lets only one
command renew at a time, and the others take what it has stored. Each relay has such a lock, so that a provider that is
silent holds up no other one.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import logging
import os
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tunnel.attaching import AttachOptions
from tunnel.attachment import Attachment
from tunnel.errors import NotAuthenticatedError, TunnelError, UnreachableError
from tunnel.ground.relay_options import RelayOptions
from tunnel.sign_in.provider import SignedIn, SignInTerms, refresh
from tunnel.system.clock import passed_s
from tunnel_client.errors import UsageError
from tunnel_client.login_file import lock_path, login_path, open_lock, read_login, read_logins, write_login
from tunnel_client.stored_login import Login
from tunnel_client.stored_sign_in import StoredSignIn

__all__ = ["Renewal", "SignedInAttachment", "stored_sign_in"]

_LOOK_S = 60.0  # between two looks at the stored login: the machine may have slept, or its user signed in again
_SOON_S = 10.0  # the same while something is wrong
_AGAIN_S, _AGAIN_S_MAX = 1.0, 30.0  # between two attempts to reach the provider without a valid token
_OTHERS_S = 1.0  # at several relays, once one can be used: for the tokens of the others
_LOCK_S = 60.0
_ENDING_S = 3.0  # for an answer of the provider while a command ends: the refresh token that it has sent may be used up
_LOCK_LOOK_S = 0.1
_log = logging.getLogger("tunnel.sign_in")


class _LoggedOutError(TunnelError):
    """The stored login is gone, or is another one."""


def stored_sign_in(terms: SignInTerms, token_endpoint: str, found: SignedIn) -> StoredSignIn:
    """Return what to store of a sign-in, besides the token."""
    return StoredSignIn(
        terms.issuer,
        terms.client_id,
        terms.audience,
        terms.scope,
        token_endpoint,
        found.refresh_token,
        found.renew_s,
        found.expires_s,
    )


class Renewal:
    """The token of one sign-in, as the login file has it, and its renewal."""

    def __init__(self, relay: str, options: RelayOptions, sign_in: StoredSignIn) -> None:
        self._relay = relay
        self._path = options  # how to reach the provider: of these, only the proxy and the authorities count
        self._held, self._sign_in = options.token or "", sign_in
        self._ended: tuple[str, str] | None = None  # the refresh token that was refused, and why
        self._outdated: Login | None = None  # the stored login, if a newer one could not be stored

    @property
    def newest_token(self) -> str:
        """The newest token that is known."""
        return self._held

    @property
    def is_valid(self) -> bool:
        """Whether the newest token has not expired."""
        return time.time() < self._sign_in.expires_s

    @property
    def due_s(self) -> float:
        """The seconds until the next token is needed."""
        return self._sign_in.renew_s - time.time()

    async def fresh(self) -> str:
        """Return a token that is valid for a while: the present one, or a new one.

        Raise NotAuthenticatedError if the provider renews it no more, and UnreachableError if it does not answer.
        """
        self._look()
        if self.due_s > 0:
            return self._held
        async with _locked(lock_path(self._relay)):
            login = self._look()
            if self.due_s > 0:
                return self._held
            await _to_its_end(self._renew(login))
            return self._held

    def _look(self) -> Login:
        """Take what another command has stored. Raise if this sign-in is no longer the stored one."""
        try:
            login = read_login(self._relay)
        except UsageError as error:
            raise _LoggedOutError(str(error)) from None
        if login is None or login.sign_in is None:
            raise _LoggedOutError(f"{login_path()} holds this sign-in no more")
        if login.sign_in.issuer != self._sign_in.issuer or not login.token:
            raise _LoggedOutError(f"{login_path()} holds another sign-in now")
        if login != self._outdated:
            self._held, self._sign_in = login.token, login.sign_in
        return login

    async def _renew(self, login: Login) -> None:
        one = self._sign_in
        terms = SignInTerms(one.issuer, one.client_id, one.audience, one.scope)
        again = f"sign in again with `tunnel login --sso {self._relay}`"
        if not one.refresh_token:
            raise NotAuthenticatedError(f"{one.issuer} issued no refresh token, so the sign-in ends: {again}")
        if self._ended is not None and self._ended[0] == one.refresh_token:
            raise NotAuthenticatedError(self._ended[1])
        try:
            found = await refresh(terms, one.token_endpoint, one.refresh_token, self._path)
        except NotAuthenticatedError as error:
            self._ended = one.refresh_token, f"{error}: {again}"
            raise NotAuthenticatedError(self._ended[1]) from None
        self._held, self._sign_in = found.token, stored_sign_in(terms, one.token_endpoint, found)
        try:
            async with _locked(lock_path()):
                logins = read_logins()
                if login in logins:  # otherwise, its user has logged out or in since
                    logins[logins.index(login)] = replace(login, token=found.token, sign_in=self._sign_in)
                    write_login(*logins)
        except (UsageError, UnreachableError) as error:
            self._outdated = login
            _log.warning("the renewed token is not stored, and other commands must sign in again: %s", error)


async def _to_its_end(renewing: Coroutine[Any, Any, None]) -> None:
    """Run this. If the caller is cancelled, let it come to its end first, but not for long."""
    task = asyncio.get_running_loop().create_task(renewing)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        with contextlib.suppress(TunnelError, TimeoutError):
            async with asyncio.timeout(_ENDING_S):
                await task
        raise
    finally:
        task.cancel()


@contextlib.asynccontextmanager
async def _locked(path: Path) -> AsyncIterator[None]:
    """Hold this lock meanwhile."""
    try:
        descriptor = open_lock(path)
    except UsageError as error:
        raise UnreachableError(str(error)) from None
    try:
        ends_s = passed_s() + _LOCK_S
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if passed_s() > ends_s:
                    text = f"another tunnel command has renewed the token for {_LOCK_S:g} s: end it if it is stopped"
                    raise UnreachableError(text) from None
            await asyncio.sleep(_LOCK_LOOK_S)
        yield
    finally:
        os.close(descriptor)  # this also releases the lock


class SignedInAttachment(Attachment):
    """An attachment whose tokens are renewed while it lasts. Its connections go on.

    `signed`: each relay whose token comes from a sign-in, with how to reach it.
    """

    def __init__(
        self,
        signed: Sequence[tuple[str, RelayOptions, StoredSignIn]],
        options: AttachOptions,
        make: Callable[[], Any],
        *,
        later: bool,
    ) -> None:
        super().__init__(make, later=later)
        self._tokens = [_KeptToken(self, options, *one) for one in signed]
        self._is_alone = not options.further_relays
        self._needs_one = len(signed) > len(options.further_relays)  # no relay can be used without a sign-in
        self._keeping: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Renew the tokens that are about to expire, and attach."""
        self._mark_used()
        if self._made is None:
            await asyncio.to_thread(self._load)
        begun = [asyncio.get_running_loop().create_task(token.begin()) for token in self._tokens]
        self._keeping += begun
        try:
            await (begun[0] if self._is_alone else self._until_one_is_usable(begun))
            for token, one in zip(self._tokens, begun, strict=True):
                token.use()
                self._keeping.append(asyncio.get_running_loop().create_task(token.keep(one)))
            await super().start()
        except BaseException:
            await self._stop_keeping()
            raise

    async def close(self) -> None:
        """Close the attachment, and renew its tokens no more."""
        await self._stop_keeping()
        await super().close()

    async def _until_one_is_usable(self, begun: list[asyncio.Task[None]]) -> None:
        """Return when one relay can be used, and the others have had a second. Raise the first error if none can.

        A provider that takes longer is not interrupted: the refresh token that it has got may be used up.
        """
        while self._needs_one and not any(token.is_valid for token in self._tokens):
            pending = [one for one in begun if not one.done()]
            if not pending:
                if errors := [error for one in begun if (error := one.exception()) is not None]:
                    raise errors[0]
                return
            await asyncio.wait(pending, return_when=asyncio.FIRST_COMPLETED)
        await asyncio.wait(begun, timeout=_OTHERS_S)

    async def _stop_keeping(self) -> None:
        keeping, self._keeping = self._keeping, []
        for one in keeping:
            one.cancel()
        await asyncio.gather(*keeping, return_exceptions=True)


class _KeptToken:
    """The token for one relay, which is renewed while the attachment lasts."""

    def __init__(
        self, attachment: Attachment, common: AttachOptions, relay: str, options: RelayOptions, sign_in: StoredSignIn
    ) -> None:
        self._attachment = attachment
        self._common = common
        self._relay = relay
        self._options = options
        self._renewal = Renewal(relay, options, sign_in)
        self._used = options.token or ""
        self._trouble = ""

    @property
    def is_valid(self) -> bool:
        """Whether the token has not expired."""
        return self._renewal.is_valid

    async def begin(self) -> None:
        """Get a valid token. With `wait`, a provider that does not answer is asked again, as a relay is."""
        timeout_s = self._common.attach_timeout
        ends_s = None if timeout_s is None else passed_s() + timeout_s
        again_s = _AGAIN_S
        while True:
            try:
                await self._renewal.fresh()
                return
            except _LoggedOutError:
                return  # the token may still be valid: the relay knows
            except (NotAuthenticatedError, UnreachableError) as error:
                if self._renewal.is_valid:
                    self._say(str(error))
                    return
                if isinstance(error, NotAuthenticatedError):
                    raise
                text = f"the token has expired, and no new one comes: {error}"
                if not self._common.wait or (ends_s is not None and passed_s() + again_s > ends_s):
                    raise UnreachableError(f"{text}: try again later, or with --wait") from None
                self._say(f"{text}: asking again")
            await asyncio.sleep(again_s)
            again_s = min(2 * again_s, _AGAIN_S_MAX)

    async def keep(self, begun: asyncio.Task[None]) -> None:
        """Use the token that `begin` gets in the task `begun`, and each new one, until the attachment is closed."""
        while not begun.done():
            await asyncio.wait([begun])
        if (error := begun.exception()) is not None:
            self._say(f"the token is not renewed: {error}")
        self.use()
        while True:
            await asyncio.sleep(_SOON_S if self._trouble else max(1.0, min(_LOOK_S, self._renewal.due_s)))
            try:
                await self._renewal.fresh()
            except _LoggedOutError as error:
                self._say(f"{error}: connections end when the token expires")
            except (NotAuthenticatedError, UnreachableError) as error:
                self._say(f"the token is not renewed: {error}")
            else:
                self._trouble = ""
            self.use()

    def use(self) -> None:
        """Let the attachment use the newest token."""
        if self._renewal.newest_token == self._used:
            return
        self._used = self._renewal.newest_token
        path = self._options
        self._attachment.renew_secrets(
            token=self._used, headers=path.headers, proxy=path.proxy, refused=self._on_refused, relay=self._relay
        )

    def _on_refused(self, status: int) -> None:
        self._say(f"the relay refuses the renewed token (HTTP {status})")

    def _say(self, text: str) -> None:
        """Say what is wrong, unless it was said already. With several relays, name the one that is concerned."""
        if text != self._trouble:
            self._trouble = text
            _log.warning("%s", f"{self._relay}: {text}" if self._common.further_relays else text)
