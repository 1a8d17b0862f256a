"""Runs the entries of a file on one attachment at a time, for ever: it follows the file, and outlives every refusal.

Whenever something is wrong, one line says what is wrong and what the supervisor waits for.
"""

from __future__ import annotations

import asyncio
import math
import os
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import structlog

from tunnel import Attachment, ProxyPasswordError, TunnelError
from tunnel.attached_endpoint import AttachedEndpoint
from tunnel.attachment import endpoint_of
from tunnel.endpoint_names import OwnName
from tunnel.logs.outages import OutageLog
from tunnel.refusals import asked_again_s
from tunnel.several_relays import SeveralRelays
from tunnel.system.file_watch import FileWatch
from tunnel_client.cli.serving import finish
from tunnel_client.cli.up.file import ReadFile
from tunnel_client.cli.up.keeper import Keeper, Say
from tunnel_client.cli.up.relay_choice import is_refused_again, is_same_path
from tunnel_client.errors import UsageError
from tunnel_client.login_file import login_path
from tunnel_client.settings import RelaySettings
from tunnel_client.status import ClientReport, report_of

__all__ = ["Load", "Supervisor"]

Load = Callable[[], tuple[ReadFile, RelaySettings]]
"""Reads the file and everything that it names. Raises UsageError."""

_NOT_THIS_USER = 404  # the status with which `renew_secrets` reports a token of another user
_LOOK_S = 0.5  # interval of the checks whether the relay still accepts us


class Supervisor:
    """The whole of `tunnel up`. `run` ends only when it is cancelled."""

    def __init__(self, read: ReadFile, settings: RelaySettings, load: Load, say: Say) -> None:
        self.keepers = {entry.id: Keeper(entry, say) for entry in read.entries.values()}
        self.trouble = "the relay has not answered yet"  # empty while all is well
        self._read = read
        self._settings = settings  # those that were read last
        self._used = settings  # those of the attachment
        self._load = load
        self._say = say
        self._problem = ""  # the mistake in the file that was reported last; empty if the file is good
        self._attachment: Attachment | None = None
        self._is_ready = False  # whether the attachment can be asked for its statistics
        self._is_attached = False
        self._refused: tuple[Exception, RelaySettings] | None = None  # the latest refusal, until an attach succeeds
        self._renewed = asyncio.Event()  # the settings of the relay have changed
        self._changes = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._watch = FileWatch(self._files(), self._file_changed)
        self._started_s = time.time()

    async def run(self) -> None:
        """Attach and serve, again and again."""
        self._watch.start()
        try:
            while True:
                self._used = self._settings
                self._renewed.clear()
                error = await self._serve(self._used)
                if error is not None:
                    await self._wait(error, self._used)
        finally:
            self._watch.stop()

    async def finish(self) -> None:
        """Free the ports and names, and return when no connection moves bytes any more."""
        keepers = list(self.keepers.values())
        traffics = [keeper.traffic for keeper in keepers if keeper.traffic is not None]
        await finish(keepers, traffics)

    def report(self) -> ClientReport:
        """Return the report for `tunnel status`."""
        command = f"up {self._read.path}"
        if self._attachment is not None and self._is_ready:
            found = report_of(self._attachment, command, self._started_s)
        else:
            found = ClientReport(os.getpid(), command, self._started_s, False, "no relay", "", 0, [])
        found.trouble = self.trouble or found.trouble
        found.entries = [keeper.report() for keeper in self.keepers.values()]
        return found

    # the attachment

    async def _serve(self, settings: RelaySettings) -> Exception | None:
        """Serve the entries on a new attachment.

        Return its refusal, or the error of settings that cannot be used, or None when the settings have changed.
        """
        with OwnName("up", settings.url, str(self._read.path.absolute())) as name:
            return await self._serve_as(name.text, settings)

    async def _serve_as(self, name: str, settings: RelaySettings) -> Exception | None:
        try:
            attachment = settings.attach(attach_timeout=None, wait=True, name=name)
        except UsageError as error:
            return error
        attachment.add_connection_listener(self)
        attachment.add_wait_listener(OutageLog(structlog.get_logger("tunnel")))
        self._attachment = attachment
        starting = asyncio.get_running_loop().create_task(attachment.start())
        try:
            await self._attach(attachment, starting)
            if self._renewed.is_set():
                return None
            await starting  # raises the refusal
            self._attached(attachment)
            refusals = _Refusals(endpoint_of(attachment), self._say)
            while attachment.refusal is None and not self._renewed.is_set():
                await self._renewed_within(_LOOK_S)
                refusals.look()
            return attachment.refusal
        except TunnelError as error:
            return error
        finally:
            starting.cancel()
            await asyncio.gather(starting, return_exceptions=True)
            self._is_attached = False
            async with self._changes:
                self._attachment, self._is_ready = None, False
                await asyncio.gather(*(keeper.stop() for keeper in self.keepers.values()))
            await attachment.close()

    async def _attach(self, attachment: Attachment, starting: asyncio.Task[None]) -> None:
        """Return when the attach has ended, or when the settings have changed.

        Until then, say why no relay answers, and say it again whenever the reason changes.
        """
        renewed = asyncio.get_running_loop().create_task(self._renewed.wait())
        said, is_asked = "", False
        try:
            while not starting.done() and not renewed.done():
                await asyncio.wait([starting, renewed], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
                self._is_ready = True
                if not starting.done() and not is_asked:
                    is_asked = True
                    self._say("asking", f"asking {attachment.stats().carrier.partition(' ')[2]} ...")
                trouble = "" if starting.done() else attachment.stats().trouble
                if trouble and trouble != said:
                    said = trouble
                    self._waits(f"no relay answers ({trouble})", "trying again until one does")
        finally:
            renewed.cancel()

    def _attached(self, attachment: Attachment) -> None:
        self._is_ready = self._is_attached = True
        self._refused = None
        self.trouble = ""
        self._say("attached", f"attached: {attachment.stats().carrier}", carrier=attachment.stats().carrier)
        for keeper in self.keepers.values():
            keeper.start(attachment)

    async def _wait(self, error: Exception, settings: RelaySettings) -> None:
        """Say why there is no attachment, and return when it is time to try another one."""
        self._refused = error, settings
        if self._settings != settings and not is_refused_again(error, settings, self._settings):
            return  # newer settings have been read since
        again_s = asked_again_s(error)
        files = " or ".join(map(str, self._read.files))
        if isinstance(error, ProxyPasswordError):
            awaited = f"waiting for another user and password in {files}; the same ones are not sent again"
        else:
            awaited = f"waiting for a change of {files}, and trying again every {again_s:g} s"
        if not self._renewed.is_set():
            self._waits(str(error), awaited)
            await self._renewed_within(again_s)

    async def _renewed_within(self, seconds: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(None if seconds == math.inf else seconds):
                await self._renewed.wait()

    def _waits(self, wrong: str, awaited: str) -> None:
        """Say what is wrong and what is waited for, unless both are still the same."""
        text = f"{wrong}: {awaited}"
        if text != self.trouble:
            self.trouble = text
            self._say("waiting", text, is_bad=True)

    # ConnectionListener: called by the attachment

    def disconnected(self, reason: str) -> None:
        if self._is_attached and self._attachment is not None and self._attachment.refusal is None:
            limit = f"connections wait for up to {self._settings.user_timeout:g} s"
            self.trouble = f"{reason}: trying again until the relay answers; {limit}"
            self._say("disconnected", self.trouble, is_bad=True)

    def reconnected(self) -> None:
        self.trouble = ""
        self._say("reconnected", "the relay answers again")

    # the file

    def _files(self) -> list[Path]:
        return [*self._read.files, login_path()]

    def _file_changed(self) -> bool:
        """Read the file again. If it is broken, say so and change nothing."""
        try:
            read, settings = self._load()
        except UsageError as error:
            if str(error) != self._problem:
                self._problem = str(error)
                text = f"{error}: what was read before stays in use, waiting for the file to be mended"
                self._say("not_reloaded", text, is_bad=True)
            return False
        self._problem = ""
        task = asyncio.get_running_loop().create_task(self._change(read, settings))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return True

    async def _change(self, read: ReadFile, settings: RelaySettings) -> None:
        """Serve the entries of the changed file. Those that differ at most in their rates keep their connections."""
        async with self._changes:
            before, self._read = self._read, read
            self._watch.follow(self._files())
            gone = [keeper for keeper in self.keepers.values() if not _is_kept(keeper, read)]
            await asyncio.gather(*(keeper.stop() for keeper in gone))
            kept = {name: keeper for name, keeper in self.keepers.items() if keeper not in gone}
            self.keepers = {name: kept.get(name) or Keeper(entry, self._say) for name, entry in read.entries.items()}
            for name, keeper in self.keepers.items():
                if name in kept:
                    keeper.change_rate(read.entries[name])
                elif self._attachment is not None and self._is_attached:
                    keeper.start(self._attachment)
            relay = self._take(settings)
            if before.entries != read.entries or relay:
                self._say("reloaded", _difference(before, read, relay))

    def _take(self, settings: RelaySettings) -> str:
        """Use these settings from now on: in the present attachment if it can go on, else in a new one.

        Return in words what happens.
        """
        before, self._settings = self._settings, settings
        if settings == before:
            return ""
        if self._refused is not None and is_refused_again(*self._refused, settings):
            return "" if settings.proxy == "env" else "the user and password are still the same"
        attachment = self._attachment if self._is_attached else None
        if attachment is not None and attachment.refusal is None and is_same_path(settings, before):
            return self._renew(attachment, settings)
        self._renewed.set()
        return "attaching anew with the new settings of the relay"

    def _renew(self, attachment: Attachment, settings: RelaySettings) -> str:
        """Let the attachment use the secrets of these settings, each relay its own. Return in words what happens."""
        renewed = [
            each
            for each, used in zip(settings.each(), self._used.each(), strict=True)
            if (each.token, each.headers, each.proxy) != (used.token, used.headers, used.proxy)
        ]
        try:
            for each in renewed:
                self._renew_at(attachment, each)
        except ValueError as error:
            self._waits(f"the new secrets cannot be used ({error})", self._present_ones_stay())
            return "the new secrets are not used"
        self._used = settings
        self.trouble = ""
        where = f" for {' and '.join(each.url for each in renewed)}" if settings.further_relays and renewed else ""
        return f"the new secrets{where} are used from the next request on"

    def _renew_at(self, attachment: Attachment, settings: RelaySettings) -> None:
        """Let the attachment use the secrets of these settings, which are those of one relay."""
        attachment.renew_secrets(
            token=settings.token,
            headers=settings.headers,
            proxy=settings.proxy,
            refused=partial(self._secrets_refused, attachment, settings.url),
            relay=settings.url,
        )

    def _secrets_refused(self, attachment: Attachment, url: str, status: int) -> None:
        if attachment is not self._attachment:
            return
        where = f" for {url}" if self._settings.further_relays else ""
        if status == _NOT_THIS_USER:
            self._renewed.set()
            self._waits(f"the new token{where} belongs to another user", "attaching anew as that user")
        else:
            self._waits(f"the new secrets{where} are refused (HTTP {status})", self._present_ones_stay())

    def _present_ones_stay(self) -> str:
        files = " or ".join(map(str, self._read.files))
        return f"those before stay in use while they are accepted, waiting for a change of {files}"


class _Refusals:
    """The relays that have refused an attachment while others serve it, as `tunnel up` says it."""

    def __init__(self, endpoint: AttachedEndpoint | SeveralRelays, say: Say) -> None:
        self._endpoint = endpoint
        self._say = say
        self._said: dict[str, str] = {}  # by URL

    def look(self) -> None:
        """Say which relay has refused the attachment since the last look, for a new reason."""
        if not isinstance(self._endpoint, SeveralRelays):
            return
        for url, error in self._endpoint.refusals.items():
            if self._said.get(url) != str(error):
                self._said[url] = str(error)
                again_s = asked_again_s(error)
                awaited = "it is asked again with another password alone"
                if again_s < math.inf:
                    awaited = f"trying again every {again_s:g} s"
                self._say("waiting", f"{url} cannot be used ({error}): {awaited}; other relays serve", is_bad=True)


def _is_kept(keeper: Keeper, read: ReadFile) -> bool:
    entry = read.entries.get(keeper.entry.id)
    return entry is not None and keeper.entry.is_same(entry)


def _difference(before: ReadFile, read: ReadFile, relay: str) -> str:
    """Return in words what a reload changes."""
    old, new = before.entries, read.entries
    parts = [
        ("added", [name for name in new if name not in old]),
        ("changed", [name for name in new if name in old and new[name] != old[name]]),
        ("removed", [name for name in old if name not in new]),
    ]
    said = [f"{what}: {', '.join(names)}" for what, names in parts if names]
    return f"{read.path}: {'; '.join([*said, *filter(None, [relay])])}"
