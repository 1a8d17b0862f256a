"""`tunnel-broker serve`: a broker on TCP, as a service at a relay, or both."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import replace
from pathlib import Path

import structlog

from tunnel import Attachment, DeniedError, NotAuthenticatedError, TunnelError
from tunnel.logs.outages import OutageLog
from tunnel.messages import Broker, BrokerSettings, LogConfig, LogError, RemoteCallError, TopicSpec
from tunnel.messages.broker.protocol import check_name
from tunnel.process.command_line import shows_people, tell
from tunnel.process.service_manager import say_ready
from tunnel.process.stopping import until_stopped
from tunnel_client.cli.attaching import look_at, say_or_log, told_of_waiting
from tunnel_client.cli.lookups import client_loop
from tunnel_client.cli.options import relay_settings
from tunnel_client.cli.service_key import show_key, with_service_key
from tunnel_client.errors import UsageError
from tunnel_client.forward.listening import cannot_listen
from tunnel_client.places import Address, parse_bind, parse_service
from tunnel_client.settings import RelaySettings

__all__ = ["parse_topic", "run"]

_DEFAULT_LISTEN = "127.0.0.1:9100"
_ATTACH_AGAIN_S = 1.0
_GOING_ON = "trying until a relay answers"
_LOOK_S = 0.5
_log = structlog.get_logger("tunnel.broker")


def run(arguments: argparse.Namespace) -> int:
    """Serve until a signal; return 0 for SIGTERM and 130 for SIGINT."""
    if arguments.show_key:
        return show_key(arguments.key)
    if arguments.key and not arguments.service:
        raise UsageError("--key encrypts connections through the relay: name the service, as in --service orders")
    topics = dict(map(parse_topic, arguments.topic))
    listens = arguments.listen or ([] if arguments.service else [_DEFAULT_LISTEN])
    addresses = [parse_bind(text) for text in listens]
    service = parse_service(arguments.service) if arguments.service else ""
    settings = None
    if service:
        settings = replace(with_service_key(relay_settings(arguments), arguments.key), same_users=arguments.same_users)
    broker = Broker(Path(arguments.dir), _settings(arguments), topics=topics)

    with asyncio.Runner(loop_factory=client_loop) as runner:
        return runner.run(until_stopped(_serve(broker, addresses, service, settings)))


def parse_topic(text: str) -> tuple[str, TopicSpec]:
    """Return the topic that an option --topic describes. Raises UsageError if the option is wrong."""
    name, *rest = text.split(":")
    try:
        check_name("topic", name)
        if rest and rest[0] and not rest[0].isdecimal():
            raise ValueError(f"{rest[0]!r} is not a number of partitions")
        count = int(rest[0]) if rest and rest[0] else 1
        storage = rest[1] if len(rest) > 1 else "log"
        if len(rest) > 3 or (len(rest) > 2 and storage != "memory"):
            raise ValueError("only a topic in memory has a policy")
        spec = TopicSpec(partitions=count, storage=storage)
        if len(rest) > 2:
            spec = TopicSpec(partitions=count, storage=storage, policy=rest[2])
    except (RemoteCallError, ValueError) as error:
        raise UsageError(
            f"--topic {text}: {error}; write a name, as in --topic orders:4 or hints:1:memory:oldest"
        ) from None
    return name, spec


def _settings(arguments: argparse.Namespace) -> BrokerSettings:
    if arguments.replica and arguments.replica_of:
        raise UsageError("a broker cannot have a --replica and be one (--replica-of): start them as two brokers")
    return BrokerSettings(
        log=LogConfig(
            flush_messages=arguments.flush_messages,
            flush_s=arguments.flush_after,
            segment_bytes=arguments.segment_bytes,
            retain_bytes=arguments.retain_bytes,
            retain_s=arguments.retain_for,
            pending_bytes_max=8 << 20,
        ),
        replica=arguments.replica,
        behind_bytes=arguments.behind,
        master=arguments.replica_of,
        creates_topics=not arguments.only_these_topics,
        partitions_max=arguments.max_partitions,
        position_s=arguments.positions_for,
        connections_max=arguments.max_connections,
        disk_reserve_bytes=arguments.reserve,
    )


async def _serve(broker: Broker, addresses: Sequence[Address], service: str, settings: RelaySettings | None) -> None:
    async with AsyncExitStack() as stack:
        try:
            await stack.enter_async_context(broker)
        except LogError as error:
            raise UsageError(f"--dir {broker.directory}: {error}") from None
        for address in addresses:
            try:
                found = await broker.listen(address.host, address.tcp_port)
            except OSError as error:
                raise cannot_listen(address, error) from None
            if not address.is_loopback:
                _log.warning("open_to_the_network", address=found, text="anybody who can connect may read and write")
            _announce(found)
        if settings is None:
            await asyncio.Event().wait()
        else:
            await _serve_relay(broker, service, settings)


def _announce(address: str) -> None:
    say_ready(f"listening on {address}")
    if shows_people():
        tell(f"listening on {address}")
    else:
        _log.info("listening", address=address)


async def _serve_relay(broker: Broker, service: str, settings: RelaySettings) -> None:
    """Serve connections from the relay. If the attachment ends after it has served, attach again, unless the relay
    refuses the user or the service.

    The attachment has the name of the service. A broker that starts again after a crash thus takes the place of its old
    attachment at once, and clients whose connections led there get an error instead of silence.
    """
    is_first = True
    say_ready(f"asking {settings.url}")  # now, since a broker waits for its relay for as long as it takes
    while True:
        attachment: Attachment = settings.attach(attach_timeout=None, wait=True, name=service)
        try:
            async with AsyncExitStack() as stack:
                async with told_of_waiting(look_at(attachment), settings.url, say_or_log, going_on=_GOING_ON):
                    await stack.enter_async_context(attachment)
                attachment.add_connection_listener(OutageLog(_log))
                await attachment.start_server(broker.serve, service)
                _announce(service)
                is_first = False
                while attachment.refusal is None:  # noqa: ASYNC110 - only this loop waits for it
                    await asyncio.sleep(_LOOK_S)
                raise attachment.refusal.with_traceback(None)
        except TunnelError as error:
            if is_first or isinstance(error, (DeniedError, NotAuthenticatedError)):
                raise
            _log.warning("attaching_again", text=str(error))
        await asyncio.sleep(_ATTACH_AGAIN_S)
