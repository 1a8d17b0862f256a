"""The command `tunnel-relay exit`: an exit in a process of its own, which dials targets for a relay."""

import argparse
import asyncio
import os
import signal
from dataclasses import replace
from pathlib import Path

import structlog

from tunnel import Attachment, LostError, TraceWriter, attach
from tunnel.attaching import import_all
from tunnel.command_line import allows_insecure_http, show, tell, writes_events
from tunnel.encryption.keys import KeyFile, own_key
from tunnel.endpoint_names import OwnName
from tunnel.event_loops import new_event_loop
from tunnel.exit_codes import INTERRUPTED, OK
from tunnel.gateway_options import parse_headers, parse_proxy
from tunnel.logs.outages import OutageLog
from tunnel.private_files import read_token
from tunnel.stillness import STILL_S, until_still
from tunnel_servlet.command.exit_rules import ExitRules, load_rules
from tunnel_servlet.command.files import Overrides, config_file
from tunnel_servlet.config import ConfigError, RelayConfig
from tunnel_servlet.exit.dialer import Dialer
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
    token = _token(arguments)
    with (
        OwnName("exit", arguments.relay) as own_name,
        open_traces(replace(config, trace=arguments.trace or config.trace), "exit") as trace,
        asyncio.Runner(loop_factory=new_event_loop) as runner,
    ):
        if arguments.name is None:
            arguments.name = own_name.text
        return runner.run(_exit(arguments, config, token, trace, key))


async def _exit(
    arguments: argparse.Namespace,
    config: RelayConfig,
    token: str,
    trace: TraceWriter | None = None,
    key: KeyFile | None = None,
) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code of that signal.

    After SIGTERM, connections that still move bytes may finish; a second signal cuts them.
    """
    limits = config.limits
    rules = ExitRules(config, config_file(arguments), Overrides(allow=tuple(arguments.allow)))
    dialer = Dialer(rules.rules_of, dial_seconds=limits.dial_seconds, connections_max=limits.exit_connections_max)
    import_all()  # so that a wrong argument is found before the attachment is started
    try:
        attachment = attach(
            arguments.relay,
            token=token,
            proxy=parse_proxy(arguments.proxy) or "env",
            ca=arguments.ca,
            cert=arguments.cert,
            insecure_http=allows_insecure_http(arguments.insecure_http),
            headers=parse_headers(arguments.header),
            hostname=arguments.hostname,
            sni=arguments.sni,
            name=arguments.name,
            exit_handler=dialer,
            attach_timeout=None,
            wait=True,
            trace=trace,
            encryption=arguments.encryption,
            key=None if key is None else key.path,
            links=arguments.links,
            pull_interval=arguments.pull_interval,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from None
    signals = _Signals()
    rules.watch(dialer)
    serving = asyncio.ensure_future(_serve(arguments, attachment, dialer, signals, key))
    try:
        await asyncio.wait([serving, signals.cut], return_when=asyncio.FIRST_COMPLETED)
        return signals.cut.result() if signals.cut.done() else await serving
    finally:
        rules.stop()
        serving.cancel()
        await asyncio.gather(serving, return_exceptions=True)
        dialer.abort()
        await attachment.close()


class _Signals:
    """Notes the signals that come. `finish` is done after the first SIGTERM. `cut` is done, with the exit code, after
    SIGINT or a second SIGTERM."""

    def __init__(self) -> None:
        loop = asyncio.get_running_loop()
        self.finish: asyncio.Future[None] = loop.create_future()
        self.cut: asyncio.Future[int] = loop.create_future()
        loop.add_signal_handler(signal.SIGTERM, self._handle, OK)
        loop.add_signal_handler(signal.SIGINT, self._handle, INTERRUPTED)

    def _handle(self, code: int) -> None:
        if code == OK and not self.finish.done():
            self.finish.set_result(None)
        elif not self.cut.done():
            self.cut.set_result(code)


async def _serve(
    arguments: argparse.Namespace, attachment: Attachment, dialer: Dialer, signals: _Signals, key: KeyFile | None
) -> int:
    """Attach and dial until SIGTERM, then let the connections that still move bytes finish.

    Raise the error of a relay that refuses the exit.
    """
    starting = asyncio.ensure_future(attachment.start())
    patience = _Patience(arguments.give_up_after)
    keys = _KeyWatch(key)
    trouble = ""
    await asyncio.sleep(0)  # the attachment begins to start
    where = attachment.stats().carrier.partition(" ")[2]  # with the proxy on the way
    if writes_events():
        _log.info("asking", relay=arguments.relay, text=f"asking {where} ...")
    else:
        tell(f"asking {where} ...")
    try:
        while not signals.finish.done() and not starting.done():
            await asyncio.wait([signals.finish, starting], timeout=_LOOK_S, return_when=asyncio.FIRST_COMPLETED)
            last, trouble = trouble, attachment.stats().trouble
            if trouble and trouble != last and not starting.done():  # otherwise it is the error below
                _log.warning("not_attached", relay=where, text=trouble)
            patience.look(attachment)
        if starting.done():
            await starting
            _announce(arguments)
            attachment.add_connection_listener(OutageLog(_log))
            keys.show()
            while attachment.refusal is None and not signals.finish.done():
                await asyncio.wait([signals.finish], timeout=_LOOK_S)
                patience.look(attachment)
                keys.look()
            if attachment.refusal is not None:
                raise attachment.refusal.with_traceback(None)
            await _finish(attachment, dialer)
        return OK
    finally:
        starting.cancel()
        await asyncio.gather(starting, return_exceptions=True)


def _announce(arguments: argparse.Namespace) -> None:
    """Announce that targets can be dialled: as an event with --json, otherwise as a line for people."""
    if writes_events():
        _log.info("attached", relay=arguments.relay, name=arguments.name)
    else:
        tell(f"attached to {arguments.relay} as {arguments.name or 'an exit'}")


async def _finish(attachment: Attachment, dialer: Dialer) -> None:
    """Leave new connections to other exits, and return when those that are open move no bytes any more."""
    attachment.leave()
    count = dialer.connections
    if not count:
        return
    open_ones = f"{count} open connection{'s' * (count > 1)}"
    text = f"waiting for {open_ones} until no byte has moved for {STILL_S:g} s; a second signal cuts them"
    _log.warning("stopping", text=text)

    def moved() -> list[tuple[int, int]]:
        connections = attachment.stats().connections.values()
        return [(one.bytes_acknowledged, one.bytes_delivered) for one in connections]

    left = await until_still(lambda: dialer.connections, moved, STILL_S)
    if left:
        _log.warning("cut", connections=left, text=f"these connections have moved no byte for {STILL_S:g} s")


class _Patience:
    """Ends an exit whose relay has not answered for longer than `seconds`; None means never."""

    def __init__(self, seconds: float | None) -> None:
        self._seconds = seconds
        self._heard = asyncio.get_running_loop().time()

    def look(self, attachment: Attachment) -> None:
        """Note whether the relay answers. Raise LostError if it has not answered for too long."""
        now = asyncio.get_running_loop().time()
        if attachment.is_attached:
            self._heard = now
        elif self._seconds is not None and now - self._heard > self._seconds:
            raise LostError(
                f"the relay has not answered for {self._seconds:g} s ({attachment.stats().trouble}): check the path to "
                "it and start this command again; without --give-up-after it would keep trying"
            )


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


def _token(arguments: argparse.Namespace) -> str:
    """Read the token from a file or the environment: all users of the machine can see the command line."""
    if not arguments.token_file:
        token = os.environ.get("TUNNEL_TOKEN", "")
        if not token:
            raise ConfigError("no token: set TUNNEL_TOKEN, or name a file that holds it with --token-file")
        return token
    try:
        return read_token(Path(arguments.token_file))
    except ValueError as error:
        raise ConfigError(f"--token-file {error}") from None
