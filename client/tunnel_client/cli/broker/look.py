"""The commands that ask a running broker: `tunnel-broker topics`, `lag`, `read` and `metrics`."""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from tunnel import UnreachableError
from tunnel.event_loops import new_event_loop
from tunnel.exit_codes import LOST, OK
from tunnel.messages import (
    BrokerClient,
    ChannelTable,
    ConsumedMessage,
    OffsetOutOfRangeError,
    RemoteCallError,
    split_address,
)
from tunnel_client.cli.attaching import attached
from tunnel_client.cli.options import relay_settings
from tunnel_client.errors import UsageError

__all__ = ["lag", "metrics", "read", "topics"]

_FOLLOW_WAIT_MS = 20_000


def _run(arguments: argparse.Namespace, ask: Callable[[BrokerClient], Awaitable[int]]) -> int:
    async def run() -> int:
        async with _client(arguments) as client:
            try:
                return await ask(client)
            except RemoteCallError as error:
                raise UsageError(f"the broker at {arguments.broker} answers: {error}") from None
            except OSError as error:
                raise UnreachableError(
                    f"no broker answers at {arguments.broker} ({error}): check the address, and that it runs"
                ) from None

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


@asynccontextmanager
async def _client(arguments: argparse.Namespace) -> AsyncIterator[BrokerClient]:
    try:
        _, port = split_address(arguments.broker)
    except ValueError as error:
        raise UsageError(str(error)) from None
    if port is not None and not arguments.relay:
        async with ChannelTable() as table:
            yield BrokerClient(table, arguments.broker)
        return
    arguments.wait, arguments.wait_default = None, 30.0
    async with attached(relay_settings(arguments), arguments) as attachment:

        async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            return await attachment.open_connection(*split_address(address), timeout=30)

        async with ChannelTable(dial, connect_timeout=30) as table:
            yield BrokerClient(table, arguments.broker)


def _table(heads: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Print columns: text to the left, numbers to the right."""
    texts = [[f"{each:,}" if isinstance(each, int) else str(each) for each in row] for row in rows]
    widths = [max(len(row[index]) for row in [list(heads), *texts]) for index in range(len(heads))]
    is_number = [bool(rows) and isinstance(rows[0][index], int) for index in range(len(heads))]
    for row in [list(heads), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        print("  ".join(cells).rstrip())


def topics(arguments: argparse.Namespace) -> int:
    """List the topics."""

    async def ask(client: BrokerClient) -> int:
        found = await client.topics()
        if arguments.json:
            print(json.dumps(msgspec.to_builtins(found)))
            return OK
        rows = [
            (report.topic, report.storage, each.partition, each.first, each.end, each.size_bytes, each.problem)
            for report in found
            for each in report.partitions
        ]
        if rows:
            _table(("TOPIC", "STORAGE", "PARTITION", "FIRST", "END", "BYTES", ""), rows)
        else:
            print("no topics yet: a message to a topic creates it, or `tunnel-broker serve --topic NAME`")
        return OK

    return _run(arguments, ask)


def lag(arguments: argparse.Namespace) -> int:
    """Show the positions of groups.

    Return LOST if one is further behind in a partition than --over allows, or if how far it is behind is unknown.
    """

    async def ask(client: BrokerClient) -> int:
        found = await client.positions(arguments.group)
        most = arguments.over
        is_behind = most is not None and any(each.lag is None or each.lag > most for each in found)
        if arguments.json:
            print(json.dumps([{**msgspec.to_builtins(each), "lag": each.lag} for each in found]))
        elif found:
            rows = [
                (each.group, each.topic, each.partition, each.offset, _known(each.end), _known(each.lag))
                for each in found
            ]
            _table(("GROUP", "TOPIC", "PARTITION", "POSITION", "END", "LAG"), rows)
        else:
            print(f"no positions{f' of a group {arguments.group}' if arguments.group else ''} yet")
        return LOST if is_behind else OK

    return _run(arguments, ask)


def _known(number: int | None) -> int | str:
    return "unknown" if number is None else number


def read(arguments: argparse.Namespace) -> int:
    """Print messages."""

    async def ask(client: BrokerClient) -> int:
        consumer = client.consumer(arguments.topic, arguments.partition, max(0, arguments.start))
        left = arguments.count
        if arguments.start < 0:
            report = next((each for each in await client.topics() if each.topic == arguments.topic), None)
            if report is not None and arguments.partition < len(report.partitions):
                place = report.partitions[arguments.partition]
                consumer.offset = max(place.first, place.end + arguments.start)
        while left is None or left > 0:
            try:
                messages = await consumer.fetch(_FOLLOW_WAIT_MS if arguments.follow else 0)
            except OffsetOutOfRangeError as error:
                if arguments.start > 0:
                    raise UsageError(f"{error}: name another --from") from None
                consumer.offset = error.first
                continue
            if not messages and not arguments.follow:
                break
            for message in messages[:left]:
                _print(message, as_json=arguments.json)
            sys.stdout.flush()
            left = None if left is None else left - len(messages)
        return OK

    return _run(arguments, ask)


def _print(message: ConsumedMessage, *, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write(message.payload + b"\n")
        return
    try:
        found = {"offset": message.offset, "payload": message.payload.decode()}
    except UnicodeDecodeError:
        found = {"offset": message.offset, "payload_base64": b64encode(message.payload).decode()}
    sys.stdout.buffer.write(json.dumps(found).encode() + b"\n")


def metrics(arguments: argparse.Namespace) -> int:
    """Print counters."""

    async def ask(client: BrokerClient) -> int:
        found = await client.metrics()
        if arguments.json:
            print(json.dumps(found))
        else:
            for name, value in found.items():
                print(f"tunnel_broker_{name} {value:g}")
        return OK

    return _run(arguments, ask)
