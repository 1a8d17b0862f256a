"""The command `tunnel-relay exit`: an exit in a process of its own, which dials targets for a relay."""

import argparse
import asyncio
import os
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import structlog

from tunnel import Attachment, TraceWriter
from tunnel.attaching import AttachOptions, attach_with, import_all
from tunnel.encryption.keys import KeyFile, own_key
from tunnel.endpoint_names import OwnName
from tunnel.ground.exit_codes import OK
from tunnel.ground.relay_lists import pair_tokens, split_files, split_relays
from tunnel.ground.relay_options import FOR_ONE, OPTIONS, RelayKeywords
from tunnel.logs.outages import OutageLog
from tunnel.metrics.endpoint import serve_metrics
from tunnel.process.command_line import show, tell, writes_events
from tunnel.process.descriptors import allowed_connections
from tunnel.process.event_loops import new_event_loop
from tunnel.process.gateway_options import given_keywords
from tunnel.process.service_manager import say_ready, say_status
from tunnel.process.stillness import STILL_S
from tunnel.process.stopping import until_lost, until_moved, until_stopped
from tunnel.system.private_files import read_token
from tunnel_servlet.command.exit_audit import ExitAudit
from tunnel_servlet.command.exit_rules import ExitRules, load_rules
from tunnel_servlet.command.files import Overrides, config_file
from tunnel_servlet.config import ConfigError, RelayConfig
from tunnel_servlet.exit.dialer import Dialer
from tunnel_servlet.web.auditing import open_audit
from tunnel_servlet.web.running import open_traces

__all__ = ["run_exit"]

_LOOK_S = 1.0  # interval between two checks of the attachment
_log = structlog.get_logger("exit")


def run_exit(arguments: argparse.Namespace) -> int:
    """Run an exit for a relay in another process, with the rules of the local configuration file."""
    key = _key(arguments)
    if arguments.show_key and key is not None:
        show(key.fingerprint)
        return OK
    if not arguments.relay:
        raise ConfigError("an exit needs a relay to attach to: name it with --relay URL")
    config = load_rules(config_file(arguments), Overrides(allow=tuple(arguments.allow)))
    relays = _relays(arguments)
    with (
        OwnName("exit", arguments.relay) as own_name,
        open_traces(replace(config, trace=arguments.trace or config.trace), "exit") as trace,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        if arguments.name is None:
            arguments.name = own_name.text
        return runner.run(_exit(arguments, config, relays, trace, key))


async def _exit(
    arguments: argparse.Namespace,
    config: RelayConfig,
    relays: list[tuple[str, str | None]],
    trace: TraceWriter | None = None,
    key: KeyFile | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code of that signal.

    After SIGTERM, connections that still move bytes may finish; a second signal cuts them.
    """
    limits = config.limits
    rules = ExitRules(config, config_file(arguments), Overrides(allow=tuple(arguments.allow)))
    trail = None if config.audit is None else open_audit(config.audit)
    dialer = Dialer(
        rules.rules_of,
        dial_seconds=limits.dial_seconds,
        connections_max=allowed_connections(limits.exit_connections_max),
        witness=None if trail is None else ExitAudit(trail),
    )
    import_all()  # so that a wrong argument is found before the attachment is started
    try:
        given = given_keywords(arguments)
        _check_for_one(given, len(relays))
        (url, given["token"]), *further = relays
        options = AttachOptions(
            **given,
            name=arguments.name,
            exit_handler=dialer,
            attach_timeout=None,
            wait=True,
            trace=trace,
            key=None if key is None else key.path,
            further_relays=further,
            same_users=arguments.same_users,
        )
        attachment = attach_with(url, options)
    except ValueError as error:
        raise ConfigError(str(error)) from None
    rules.watch(dialer)
    starting = asyncio.ensure_future(attachment.start())
    measuring = AsyncExitStack()
    try:
        await _measure(measuring, arguments, attachment, dialer, trace)
        serving = _serve(arguments, attachment, starting, key)
        return await until_stopped(serving, lambda: _finish(attachment, starting, dialer))
    finally:
        await measuring.aclose()
        rules.stop()
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)
        dialer.abort()
        await attachment.close()
        if trail is not None:
            await trail.close()


async def _measure(
    stack: AsyncExitStack,
    arguments: argparse.Namespace,
    attachment: Attachment,
    dialer: Dialer,
    trace: TraceWriter | None,
) -> None:
    """Serve the metrics, if --metrics asks for it, until the stack is closed."""
    try:
        await stack.enter_async_context(serve_metrics(arguments.metrics, attachment, trace, dialer.samples))
    except ValueError as error:
        raise ConfigError(str(error)) from None


async def _serve(
    arguments: argparse.Namespace, attachment: Attachment, starting: asyncio.Future[None], key: KeyFile | None
) -> None:
    """Attach and dial. Raise the error of a relay that refuses the exit, or does not answer for too long."""
    watching = asyncio.ensure_future(until_lost(attachment, arguments.give_up_after))
    keys = _KeyWatch(key)
    ends: list[asyncio.Future[Any]] = [watching, starting]
    trouble = ""
    await asyncio.sleep(0)  # the attachment begins to start
    where = attachment.stats().carrier.partition(" ")[2]  # with the proxy on the way
    if writes_events():
        _log.info("asking", relay=arguments.relay, text=f"asking {where} ...")
    else:
        tell(f"asking {where} ...")
    say_ready(f"asking {where}")  # now, since an exit waits for its relay for as long as it takes
    try:
        while not starting.done():
            await asyncio.wait(ends, timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            last, trouble = trouble, attachment.stats().trouble
            if trouble and trouble != last and not starting.done():  # otherwise it is the error below
                _log.warning("not_attached", relay=where, text=trouble)
                say_status(f"asking {where}: {trouble}")
            if watching.done() and not starting.done():
                await watching
        await starting
        _announce(arguments, attachment)
        say_status(f"attached to {where}")
        attachment.add_connection_listener(OutageLog(_log))
        keys.show()
        while not watching.done():
            await asyncio.wait([watching], timeout=_LOOK_S)
            keys.look()
        await watching
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)


def _announce(arguments: argparse.Namespace, attachment: Attachment) -> None:
    """Announce that targets can be dialled: as an event with --json, otherwise as a line for people."""
    if writes_events():
        _log.info("attached", relay=arguments.relay, name=arguments.name)
    else:
        relays = attachment.stats().relays
        where = ", ".join(relay.url for relay in relays if relay.attached) or arguments.relay
        others = [relay.url for relay in relays if not relay.attached]
        asked = f"; {', '.join(others)} has not answered yet" if others else ""
        tell(f"attached to {where} as {arguments.name or 'an exit'}{asked}")


async def _finish(attachment: Attachment, starting: asyncio.Future[None], dialer: Dialer) -> None:
    """Leave new connections to other exits, and return when those that are open move no bytes any more."""
    if not starting.done():
        return
    attachment.leave()

    def moved() -> list[tuple[int, int]]:
        connections = attachment.stats().connections.values()
        return [(one.bytes_acknowledged, one.bytes_delivered) for one in connections]

    left = await until_moved(lambda text: _log.warning("stopping", text=text), lambda: dialer.connections, moved)
    if left:
        _log.warning("cut", connections=left, text=f"these connections have moved no byte for {STILL_S:g} s")


class _KeyWatch:
    """Reports the key of the exit, at the start and after each change of its file."""

    def __init__(self, key: KeyFile | None) -> None:
        self._key = key
        self._shown = ""
        self._trouble = ""

    def show(self) -> None:
        """Print the key, for the users of this exit."""
        if self._key is None:
            tell("no key: connections are not encrypted from end to end; `tunnel-relay exit --show-key` makes a key")
            return
        self._shown = self._key.fingerprint
        tell(f"key {self._shown}")

    def look(self) -> None:
        """Log a change of the key file, and its effect."""
        if self._key is None:
            return
        found, trouble = self._key.fingerprint, self._key.trouble
        if found != self._shown:
            _log.warning("key_changed", key=found, text="new connections use the new key")
        if trouble and trouble != self._trouble:
            _log.warning("key_unusable", text=f"{trouble}; new connections use the key before it")
        self._shown, self._trouble = found, trouble


def _key(arguments: argparse.Namespace) -> KeyFile | None:
    """Return the key of the exit, or None if it has none: its streams are then in clear."""
    if arguments.encryption == "off" and not arguments.show_key:
        return None
    must_exist = arguments.show_key or arguments.encryption == "require"
    try:
        return own_key(arguments.key, "exit.pem", make=must_exist)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _check_for_one(given: RelayKeywords, relays: int) -> None:
    """Raise ConfigError if an option says what one relay alone may know, and there are several: it is not clear which
    one is meant, and a secret must not go to another one."""
    flags = [OPTIONS[name].flag for name in FOR_ONE if given.get(name)]
    if flags and relays > 1:
        raise ConfigError(
            f"{' and '.join(flags)} hold{'s' * (len(flags) == 1)} for one relay, but {relays} are named: run an exit "
            "for each relay, with the options for it (connections then stay at their relay)"
        )


def _relays(arguments: argparse.Namespace) -> list[tuple[str, str | None]]:
    """Return each relay with its token."""
    urls = split_relays(arguments.relay)
    try:
        return pair_tokens(urls, _tokens(arguments, len(urls)))
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _tokens(arguments: argparse.Namespace, relays: int) -> list[str]:
    """Read the tokens from files or the environment: all users of the machine can see the command line."""
    if not arguments.token_file:
        token = os.environ.get("TUNNEL_TOKEN", "")
        if not token:
            raise ConfigError("no token: set TUNNEL_TOKEN, or name a file that holds it with --token-file")
        return token.split() if relays > 1 else [token]
    try:
        return [read_token(Path(name)) for name in split_files(arguments.token_file)]
    except ValueError as error:
        raise ConfigError(f"--token-file {error}") from None
