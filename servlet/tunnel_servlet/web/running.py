"""Runs a relay in a process: listeners, signals, reloading, draining."""

import asyncio
import contextlib
import signal
import ssl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import structlog

from tunnel import TraceWriter, open_trace
from tunnel.ground.exit_codes import INTERRUPTED, OK
from tunnel.metrics.process import LoopLag
from tunnel.process.service_manager import say_ready, say_stopping, watched
from tunnel.process.stillness import STILL_S, until_still
from tunnel.traces.watch import LoopWatch
from tunnel_servlet.config import ConfigError, ListenAddress, RelayConfig, require_users
from tunnel_servlet.switch.decisions import PacketFilter
from tunnel_servlet.web.admin import create_admin
from tunnel_servlet.web.application import RELAY, create_app
from tunnel_servlet.web.auditing import open_audit
from tunnel_servlet.web.drain_outcome import DrainWatch
from tunnel_servlet.web.http.server import (
    RelayRunner,
    admin_connections,
    allow_files,
    client_connections,
    listen,
)
from tunnel_servlet.web.http.tls import TlsReload, contexts, out_of_date, public_contexts
from tunnel_servlet.web.metrics import RelayMetrics
from tunnel_servlet.web.reloading import Reloading

__all__ = ["RunningRelay", "open_traces", "serve"]

_log = structlog.get_logger("relay")
_EXPECTS_EXITS = (
    "a rule allows exits in processes of their own (exit = true): until 5 s after the first endpoint has attached, "
    "connections to targets wait for one of them, up to 7 s; then the inline exit dials if none is attached. Remove "
    "that rule if no such exit will run"
)


class RunningRelay:
    """A relay with its listeners. Enter it with `async with`, then wait for `stopped`.

    `load` reads the configuration again; it is called when one of `files` has changed.
    """

    def __init__(
        self,
        config: RelayConfig,
        load: Callable[[], RelayConfig] | None = None,
        *,
        files: list[Path] | None = None,
        packet_filter: PacketFilter | None = None,
    ) -> None:
        self.config = config
        self.addresses: list[ListenAddress] = []  # with the actual ports
        self.public_addresses: list[ListenAddress] = []  # the same for public HTTP
        self.admin: ListenAddress | None = None
        self.stopped = asyncio.Event()
        self._writer = open_trace_of(config, "relay")
        self.app = create_app(config, packet_filter, trace=self._writer)
        self.relay = self.app[RELAY]
        self.reloading = Reloading(load, self._apply, files or [], config, self.relay.reloads)
        self._tls = TlsReload(config.tls)
        self._loop_watch = None if self._writer is None else LoopWatch(self._writer, config.switch.node)
        self._lag = LoopLag()
        self.connections = client_connections(config.limits)
        self._runners: list[RelayRunner] = []
        self._drain: asyncio.Task[None] | None = None
        self._drain_watch = DrainWatch()

    async def __aenter__(self) -> "RunningRelay":
        try:
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.close()

    async def _start(self) -> None:
        config = self.config
        if config.audit is not None:
            self.relay.audit.trail = open_audit(config.audit)
        # This comes first, so that a bad certificate is reported before any address is bound.
        planned, public = contexts(config), public_contexts(config)
        turns = self.relay.host.turns
        runner = await self._runner(
            RelayRunner(self.app, config.limits, self.connections, turns, proxies=config.proxies)
        )
        for address, tls in planned:
            self.addresses.append(await listen(runner, address, tls))
        for address, tls in public:
            self.public_addresses.append(await self._listen_public(address, tls))
        if config.admin is not None:
            self._lag.start()
            metrics = RelayMetrics(self.relay, self.connections, self._lag)
            app = create_admin(self.relay, self.drain, metrics, self._drain_watch)
            admin = RelayRunner(app, config.limits, admin_connections(), is_admin=True)
            self.admin = await listen(await self._runner(admin), config.admin, setting="admin")
        self.reloading.watch.start()
        if self._loop_watch is not None:
            self._loop_watch.start()
        self.relay.audit.note_started(tokens=len(config.tokens), users=len(config.grants.users))
        for address in self.addresses:
            url = f"{'https' if address.tls else 'http'}://{address}{config.base}"
            _log.info("listening", url=url, open=config.is_open, exit=config.exit)
            if not address.tls and not address.is_loopback:
                _log.warning(
                    "no_tls",
                    url=url,
                    text="tokens cross the network unencrypted: put a TLS proxy in front, or configure [tls]",
                )
        if self.admin is not None:
            _log.info("listening", url=f"http://{self.admin}", admin=True)
        if config.exit == "inline" and self.relay.grants.has_separate_exits:
            _log.info("expects_exits", text=_EXPECTS_EXITS)

    async def _listen_public(self, address: ListenAddress, tls: ssl.SSLContext | None) -> ListenAddress:
        try:
            found = await self.relay.public_ports.listen(address, tls)
        except OSError as error:
            why = error.strerror or error
            raise ConfigError(f"public_http: cannot listen on {address}: {why}: choose another address") from None
        _log.info("listening", url=f"{'https' if found.tls else 'http'}://{found}", public=True)
        return found

    async def _runner(self, runner: RelayRunner) -> RelayRunner:
        self._runners.append(runner)
        await runner.setup()
        return runner

    async def close(self) -> None:
        """Stop at once: answer the waiting requests and cut all connections."""
        self.reloading.watch.stop()
        self._lag.close()
        if self._loop_watch is not None:
            self._loop_watch.close()
        if self._drain is not None:
            self._drain.cancel()
            await asyncio.gather(self._drain, return_exceptions=True)
        for runner in self._runners:
            await runner.cleanup()
        self.relay.host.close()
        if self._writer is not None:
            self._writer.close()
        await self.relay.audit.close()
        self.stopped.set()

    def reload_on_signal(self) -> None:
        """Handle SIGHUP."""
        is_done = self.reload()
        self.relay.audit.note_act("reload", "SIGHUP", "" if is_done else self.relay.reloads.error)

    def reload(self) -> bool:
        """Read the files again and apply them. Return False if they cannot be used.

        In that case the present tokens and rules stay in force, and the error is logged and shown in the relay's state.
        """
        return self.reloading.reload()

    def _apply(self, config: RelayConfig) -> None:
        require_users(config, self.relay.tokens, self.relay.admin_secret)
        renewed = self._tls.new_contexts(config.tls)  # raises ConfigError before anything is applied
        self.relay.reload(config)
        if renewed is not None:
            for_clients, for_strangers = renewed
            for runner in self._runners:
                runner.use_tls(for_clients)
            self.relay.public_ports.use_tls(for_strangers)
            _log.info("certificates", text="connections that come from now on use the changed certificates")
            old = "" if config.tls is None else out_of_date(config.tls)
            if old:
                _log.warning("certificate_out_of_date", text=old)

    def drain(self, seconds: float | None = None) -> None:
        """Refuse new connections, and stop when the last open one has ended or the time is over.

        `seconds` overrides the configured time. A call while the relay drains has no effect.
        """
        self._start_draining(seconds, "for {count} to end, {most:g} s at most; SIGTERM cuts them", until_still_=False)

    def terminate(self) -> None:
        """Handle SIGTERM: drain the relay, but do not wait for connections that move no bytes.

        Stop at once if the relay is draining already.
        """
        self.relay.audit.note_act("drain", "SIGTERM")
        if self._drain is not None:
            self._stop_drained()
        text = (
            f"for {{count}} until no byte has moved for {STILL_S:g} s, {{most:g}} s at most; a second SIGTERM cuts them"
        )
        self._start_draining(None, text, until_still_=True)

    def _start_draining(self, seconds: float | None, text: str, *, until_still_: bool) -> None:
        if self._drain is not None:
            return
        most = self.config.limits.drain_seconds if seconds is None else seconds
        stats = self.relay.host.switch.stats()
        routes = stats.routes_open
        self._drain_watch.begin(stats)
        self.relay.drain()
        say_stopping(most)
        if routes:
            count = f"{routes} open connection{'s' * (routes > 1)}"
            _log.warning("stopping", text=f"waiting {text.format(count=count, most=most)}")
        self._drain = asyncio.get_running_loop().create_task(self._drained(most, until_still_=until_still_))

    def _routes(self) -> int:
        return self.relay.host.switch.stats().routes_open

    def _unfinished(self) -> int:
        """How many connections are open; if none is, 1 while an end of an aborted one still has to learn of it."""
        return self._routes() or not self.relay.host.switch.operator.are_over()

    def _streamed(self) -> int:
        return self.relay.host.switch.stats().counters.packets_streamed

    async def _drained(self, seconds: float, *, until_still_: bool) -> None:
        waiting: list[asyncio.Future[Any]] = [asyncio.ensure_future(self.relay.host.wait_until_drained())]
        if until_still_:
            waiting.append(asyncio.ensure_future(until_still(self._unfinished, self._streamed, STILL_S)))
        try:
            await asyncio.wait(waiting, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for one in waiting:
                one.cancel()
            await asyncio.gather(*waiting, return_exceptions=True)
        routes = self._routes()
        if routes and until_still_ and waiting[1].done() and not waiting[1].cancelled():
            _log.warning("cut", routes=routes, text=f"these connections have moved no byte for {STILL_S:g} s")
        elif routes:
            _log.warning("drain_timeout", routes=routes)
        self._stop_drained()

    def _stop_drained(self) -> None:
        """Stop, and say what the drain did."""
        if not self.stopped.is_set():
            found = self._drain_watch.end(self.relay.host.switch.stats())
            _log.info("drained", moved=found.moved, ended=found.ended, cut=found.cut)
            self.stopped.set()


@contextlib.contextmanager
def open_traces(config: RelayConfig, name: str) -> Iterator[TraceWriter | None]:
    """Open the trace writer that the configuration asks for, and close it at the end. Yield None if there is none."""
    trace = open_trace_of(config, name)
    try:
        yield trace
    finally:
        if trace is not None:
            trace.close()


def open_trace_of(config: RelayConfig, name: str) -> TraceWriter | None:
    """Open a trace writer, which the caller must close. Return None if the configuration names no directory.

    Raise ConfigError if the directory is not writable.
    """
    if not config.trace:
        return None
    try:
        return open_trace(config.trace, name=name, bytes_max=config.limits.trace_bytes_max, tell=_tell)
    except OSError as error:
        raise ConfigError(f"trace: {config.trace}: {error.strerror}: name a directory that can be written") from None


def _tell(text: str) -> None:
    _log.warning("trace", text=text)


async def serve(config: RelayConfig, load: Callable[[], RelayConfig] | None, files: list[Path]) -> int:
    """Serve until the relay has drained, or until SIGINT stops it at once. SIGHUP reads the files again.

    SIGTERM and `tunnel-relay drain` start to drain it.

    Return the exit code: 130 after SIGINT, else 0.
    """
    loop = asyncio.get_running_loop()
    code = OK
    allow_files(config.limits)
    async with RunningRelay(config, load, files=files) as running:

        def interrupt() -> None:
            nonlocal code
            code = INTERRUPTED
            running.stopped.set()

        handlers: dict[signal.Signals, Callable[[], object]] = {
            signal.SIGTERM: running.terminate,
            signal.SIGINT: interrupt,
            signal.SIGHUP: running.reload_on_signal,
        }
        for number, handler in handlers.items():
            loop.add_signal_handler(number, handler)
        try:
            say_ready(f"listening on {', '.join(map(str, running.addresses))}")
            with watched():
                await running.stopped.wait()
        finally:
            for number in handlers:
                loop.remove_signal_handler(number)
    _log.info("stopped")
    return code
