"""`tunnel expose`: publish local services under names at the relay."""

import argparse
import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path

import structlog

from tunnel import Attachment, DeniedError, PublicPlace
from tunnel.encryption.keys import KeyFile
from tunnel.endpoint_names import OwnName
from tunnel.ground.defaults import BACKLOG
from tunnel.process.command_line import CommandAdder, tell
from tunnel.streams.datagram_sockets import open_datagrams
from tunnel.streams.splice import Side, SocketSide, TunnelSide, splice
from tunnel.streams.target_side import LargeBuffers, TargetSide
from tunnel_client.cli.commands.forward import announce
from tunnel_client.cli.options import add_relay_options, relay_settings
from tunnel_client.cli.service_key import add_key_options, show_key, with_service_key
from tunnel_client.cli.serving import Served, add_serving_options, run_serving
from tunnel_client.errors import UsageError
from tunnel_client.forward.traffic import Traffic
from tunnel_client.places import Address, is_datagram_service, parse_address, parse_service
from tunnel_client.status import serve_status

__all__ = ["Exposing", "add", "public_place", "require_fitting"]

_log = structlog.get_logger("tunnel")
_DIAL_S = 10.0
_PORT_MAX = 65535
_CLIENT_ADDRESS = ("none", "forwarded-for", "proxy-protocol")
_BACKLOG_MOST = 65535  # LISTEN_STATE has two bytes for it


def add(commands: CommandAdder) -> None:
    """Add the command and its arguments."""
    parser = commands.add(
        "expose",
        "publish local services under names at the relay",
        "tunnel expose reports 127.0.0.1:8000",
    )
    parser.add_argument(
        "words",
        nargs="*",
        metavar="NAME HOST:PORT",
        help="name of a service, which clients reach with `tunnel forward PORT:NAME`, and its address as seen from "
        "this machine, or unix:PATH; repeatable. A name such as udp/dns is for datagrams: clients reach it with "
        "`tunnel forward udp/PORT:dns`",
    )
    parser.add_argument(
        "--backlog",
        type=_backlog,
        default=BACKLOG,
        metavar="N",
        help="largest number of connections that may wait to be accepted by this command; further ones wait at the "
        f"relay (default: {BACKLOG})",
    )
    _add_public_options(parser)
    add_key_options(parser)
    add_serving_options(parser)
    add_relay_options(parser, accepts=True)
    parser.set_defaults(run=run, serves=True)


def _add_public_options(parser: argparse.ArgumentParser) -> None:
    place = parser.add_mutually_exclusive_group()
    place.add_argument(
        "--public",
        type=_public_port,
        metavar="PORT",
        help="also open this port of the relay to people without the tunnel; a rule of the relay must allow it",
    )
    place.add_argument(
        "--public-host",
        default="",
        metavar="HOST",
        help="also serve people without the tunnel, over HTTP: at the relay's port for public HTTP, under this host "
        "name; a rule of the relay must allow it",
    )
    parser.add_argument(
        "--client-address",
        choices=_CLIENT_ADDRESS,
        help="how the service learns the addresses of the people without the tunnel. forwarded-for: the relay reads "
        "the HTTP requests and sets their header X-Forwarded-For, in place of one that a client has sent; "
        "proxy-protocol: each connection begins with bytes that name the address (a PROXY header, version 2), and the "
        "service must expect them; none: not at all (default: none for --public; --public-host always sets "
        "X-Forwarded-For)",
    )


def _public_port(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _PORT_MAX):
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to {_PORT_MAX}")
    return int(text)


def public_place(port: int, host: str, client_address: str, services: Sequence[str]) -> PublicPlace | None:
    """Return where people without the tunnel reach the services, or None. Raises UsageError for a mistake."""
    name = host.lower().removesuffix(".")
    if not name and not port:
        if client_address:
            raise UsageError("--client-address needs --public PORT or --public-host HOST")
        return None
    if len(services) > 1:
        raise UsageError("--public and --public-host concern one service: start a command for each")
    if any(map(is_datagram_service, services)):
        raise UsageError("people without the tunnel reach no service of datagrams: leave the public port out")
    is_forwarded = bool(name) or client_address == "forwarded-for"
    place = PublicPlace(port, name, is_forwarded, client_address == "proxy-protocol")
    try:
        place.check()
    except ValueError as error:
        raise UsageError(f"--public-host {host}: {error}") from None
    return place


def require_fitting(name: str, address: Address) -> None:
    """Raise UsageError if an address of this kind cannot serve this kind of service."""
    if address.path and is_datagram_service(name):
        raise UsageError(f"{name} {address}: a Unix socket carries no datagrams: name a HOST:PORT, or leave out udp/")


def _is_address(text: str) -> bool:
    try:
        parse_address(text)
    except UsageError:
        return False
    return True


def _backlog(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 0 < int(text) <= _BACKLOG_MOST):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 1 to {_BACKLOG_MOST}")
    return int(text)


def run(arguments: argparse.Namespace) -> int:
    """Publish the services until a signal stops the process."""
    if arguments.show_key:
        return show_key(arguments.key)
    words = arguments.words
    if not words:
        raise UsageError("no service: write its name and its address, as in `tunnel expose reports 127.0.0.1:8000`")
    if len(words) % 2:
        name, _, address = words[-1].partition(":")
        guess = f"; did you mean {name} {address}?" if name and _is_address(address) else ""
        raise UsageError(f"{words[-1]!r} has no address: write NAME HOST:PORT for each service{guess}")
    if _is_address(words[0]) and not _is_address(words[1]):
        raise UsageError(
            f"{words[0]!r} is an address, and a service has its name first: did you mean {words[1]} {words[0]}?"
        )
    services: dict[str, Address] = {}
    for name, text in zip(map(parse_service, words[::2]), words[1::2], strict=True):
        if name in services:
            raise UsageError(
                f"the name {name} is given twice, for {services[name]} and for {text}, but a name has one address "
                f"only: give one of them another name, such as {name}-2"
            )
        services[name] = parse_address(text)
        require_fitting(name, services[name])
    public = public_place(arguments.public or 0, arguments.public_host, arguments.client_address or "", list(services))
    if public is not None and arguments.encryption == "require":
        raise UsageError("people without the tunnel cannot encrypt to your key: leave out --encryption require")
    serving = partial(
        _serving, services=services, backlog=arguments.backlog, stats_seconds=arguments.stats, public=public
    )
    settings = with_service_key(relay_settings(arguments), arguments.key)
    if settings.key:
        tell(f"key {KeyFile(Path(settings.key)).fingerprint}")
    with OwnName("expose", settings.url, " ".join(sorted(services))) as own_name:
        arguments.endpoint_name = own_name.text
        return run_serving(settings, serving, arguments)


@asynccontextmanager
async def _serving(
    attachment: Attachment,
    *,
    services: dict[str, Address],
    backlog: int,
    stats_seconds: float,
    public: PublicPlace | None,
) -> AsyncIterator[Served]:
    traffic = Traffic(attachment)
    leads = ", ".join(f"{name} -> {address}" for name, address in services.items())
    async with (
        traffic.report_every(stats_seconds),
        serve_status(attachment, f"expose {leads}"),
        AsyncExitStack() as stack,
    ):
        served = Served(traffic)
        for name, address in services.items():
            exposing = Exposing(attachment, name, address, traffic, backlog, public)
            served.listening.append(await stack.enter_async_context(exposing))
            exposing.when_refused(partial(_refused, served, exposing))
            also = {} if public is None else {"public": str(public)}
            words = f" (for people without the tunnel: {public} of the relay)" if also else ""
            announce(f"{name} -> {address}{words}", service=name, target=str(address), **also)
        yield served


def _refused(served: Served, exposing: "Exposing", error: DeniedError) -> None:
    """Log that the relay no longer allows a service, and end the command if no other service is left."""
    _log.error("not_exposed", service=exposing.name, text=str(error))
    served.listening.remove(exposing)
    if not served.listening:
        served.refusal = error


class Exposing:
    """Publishes a service, and connects its clients to a local address. Use it with `async with`."""

    def __init__(
        self,
        attachment: Attachment,
        name: str,
        target: Address,
        traffic: Traffic,
        backlog: int = BACKLOG,
        public: PublicPlace | None = None,
    ) -> None:
        self._attachment = attachment
        self.name = name
        self._target = target
        self._traffic = traffic
        self._backlog = backlog
        self._public = public
        self._buffers = LargeBuffers()
        self._tasks: dict[Side, asyncio.Task[None]] = {}  # by open tunnel side, the task that dials the service
        self._watch: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Exposing":
        self._server = await self._attachment.create_server(
            lambda: TunnelSide(self._accepted, self._far_ended), self.name, backlog=self._backlog, public=self._public
        )
        return self

    def when_refused(self, act: Callable[[DeniedError], None]) -> None:
        """Call `act` if the relay refuses the name, as after a change of its rules."""

        async def watch() -> None:
            act(await self._server.refused())

        self._watch = asyncio.get_running_loop().create_task(watch())

    async def stop_listening(self) -> None:
        """Stop listening under the name at the relay. Open connections go on."""
        self._server.close()

    async def __aexit__(self, *exception: object) -> None:
        """Stop accepting connections, and reset those that are open."""
        self._server.close()
        tasks = [*self._tasks.values(), *([self._watch] if self._watch is not None else [])]
        for side in list(self._tasks):
            side.abort_both()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _accepted(self, far: Side) -> None:
        assert isinstance(far, TunnelSide)
        self._traffic.on_opened(far)
        self._tasks[far] = asyncio.get_running_loop().create_task(self._dial(far))

    async def _dial(self, far: TunnelSide) -> None:
        """Connect to the local service. If that fails, reset the connection from the tunnel."""
        try:
            async with asyncio.timeout(_DIAL_S):
                near = await self._open_near(far.user)
        except OSError as error:  # a TimeoutError is an OSError, too
            reason = f"{self._target} does not answer" if isinstance(error, TimeoutError) else str(error)
            text = f"{reason}: start the service, or check its address"
            self._traffic.fail(text)
            _log.warning("not_connected", service=self.name, target=str(self._target), text=text)
            far.abort()
        except BaseException:
            far.abort()
            raise
        else:
            splice(near, far)

    async def _open_near(self, user: str) -> Side:
        target, loop = self._target, asyncio.get_running_loop()
        if is_datagram_service(self.name):
            return await open_datagrams(target.host, target.tcp_port)
        if target.path:
            return (await loop.create_unix_connection(SocketSide, target.path))[1]
        made = partial(TargetSide, user, self._buffers)
        return (await loop.create_connection(made, target.host, target.tcp_port))[1]

    def _far_ended(self, far: Side, error: Exception | None) -> None:
        assert isinstance(far, TunnelSide)
        task = self._tasks.pop(far)
        if not task.done():
            task.cancel()
        self._traffic.on_ended(far)
        if error is not None:
            self._traffic.fail(str(error))
            _log.warning("lost", service=self.name, text=str(error))
