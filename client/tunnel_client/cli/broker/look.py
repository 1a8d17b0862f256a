"""The commands that ask a running broker: `tunnel-broker topics`, `topic`, `lag`, `group`, `read` and `metrics`."""

from __future__ import annotations

import argparse
import asyncio
import sys
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager

import msgspec

from tunnel import DeniedError, TunnelError, UnreachableError
from tunnel.ground.exit_codes import LOST, OK
from tunnel.ground.printable import counted, printable
from tunnel.messages import (
    BrokerClient,
    ChannelTable,
    ConsumedMessage,
    DecompressError,
    OffsetOutOfRangeError,
    RemoteCallError,
    split_address,
)
from tunnel.messages.broker.protocol import NOT_ALLOWED
from tunnel.process.command_line import show, show_json, show_payload, tell
from tunnel_client.cli.attaching import QUIET_S, attached, told_of_waiting
from tunnel_client.cli.lookups import client_loop
from tunnel_client.cli.options import relay_settings
from tunnel_client.errors import UsageError

__all__ = ["delete_group", "delete_topic", "lag", "metrics", "read", "topics"]

_FOLLOW_WAIT_MS = 20_000


def _run(arguments: argparse.Namespace, ask: Callable[[BrokerClient], Awaitable[int]]) -> int:
    async def run() -> int:
        async with _client(arguments) as client:
            try:
                # Any answer shows that the broker is there. The answer to `ask` may rightly take long.
                async with told_of_waiting(lambda: (f"the broker at {arguments.broker}", ""), "", quiet_s=QUIET_S):
                    await client.metrics()
                return await ask(client)
            except RemoteCallError as error:
                if error.code == NOT_ALLOWED:
                    raise DeniedError(f"the broker at {arguments.broker} answers: {error}") from None
                raise UsageError(f"the broker at {arguments.broker} answers: {error}") from None
            except TunnelError:
                raise  # from the relay, with what to do and an exit code of its own
            except OSError as error:
                why = error.strerror or error
                raise UnreachableError(
                    f"no broker answers at {arguments.broker} ({why}): check the address, and that it runs"
                ) from None

    with asyncio.Runner(loop_factory=client_loop) as runner:
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
    texts = [[f"{each:,}" if isinstance(each, int) else printable(str(each)) for each in row] for row in rows]
    widths = [max(len(row[index]) for row in [list(heads), *texts]) for index in range(len(heads))]
    is_number = [bool(rows) and isinstance(rows[0][index], int) for index in range(len(heads))]
    for row in [list(heads), *texts]:
        cells = [
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, is_number, strict=True)
        ]
        show("  ".join(cells).rstrip())


def topics(arguments: argparse.Namespace) -> int:
    """List the topics."""

    async def ask(client: BrokerClient) -> int:
        found = await client.topics()
        if arguments.json:
            show_json(found)
            return OK
        rows = [
            (report.topic, report.storage, each.partition, each.first, each.end, each.size_bytes, each.problem)
            for report in found
            for each in report.partitions
        ]
        if rows:
            _table(("TOPIC", "STORAGE", "PARTITION", "FIRST", "END", "BYTES", ""), rows)
        else:
            show("no topics yet: a message to a topic creates it, or `tunnel-broker serve --dir DIR --topic NAME`")
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
            show_json([{**msgspec.to_builtins(each), "lag": each.lag} for each in found])
        elif found:
            rows = [
                (each.group, each.topic, each.partition, each.offset, _known(each.end), _known(each.lag))
                for each in found
            ]
            _table(("GROUP", "TOPIC", "PARTITION", "POSITION", "END", "LAG"), rows)
        else:
            show(f"no positions{f' of a group {arguments.group}' if arguments.group else ''} yet")
        return LOST if is_behind else OK

    return _run(arguments, ask)


def _known(number: int | None) -> int | str:
    return "unknown" if number is None else number


def read(arguments: argparse.Namespace) -> int:
    """Print messages of one partition, or of all of them: one after the other, or as they come with --follow."""

    async def ask(client: BrokerClient) -> int:
        places = await _places(client, arguments)
        printer = _Printer(arguments.count, as_json=arguments.json)
        if not arguments.follow:
            for place in places:
                await _read(client, arguments.topic, place, printer)
            return OK
        reading = [_read(client, arguments.topic, place, printer, _FOLLOW_WAIT_MS) for place in places]
        tasks = [asyncio.ensure_future(each) for each in reading]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            done.pop().result()  # the count is reached, or an error
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        return OK

    return _run(arguments, ask)


async def _places(client: BrokerClient, arguments: argparse.Namespace) -> list[tuple[int, int]]:
    """Return the partitions to read, each with the offset to begin at."""
    topic, start = arguments.topic, arguments.start
    report = next((each for each in await client.topics() if each.topic == topic), None)
    if report is None:
        raise UsageError(f"there is no topic {topic}: create it, or send a message to it first")
    wanted = [each for each in report.partitions if arguments.partition in (None, each.partition)]
    if not wanted:
        raise UsageError(f"{topic} has the partitions 0 to {len(report.partitions) - 1}: name one of them")
    if start > 0 and not any(each.first <= start <= each.end for each in wanted):
        ranges = ", ".join(f"{each.first} to {each.end} in partition {each.partition}" for each in wanted[:3])
        raise UsageError(f"there is no offset {start}, the broker has {ranges}: name another --from")
    return [
        (each.partition, max(each.first, each.end + start) if start < 0 else min(max(each.first, start), each.end))
        for each in wanted
    ]


async def _read(client: BrokerClient, topic: str, place: tuple[int, int], printer: _Printer, wait_ms: int = 0) -> None:
    """Print the messages of a partition: those that there are or, with `wait_ms`, also those that come later."""
    consumer = client.consumer(topic, *place)
    while printer.left != 0:
        try:
            messages = await consumer.fetch(wait_ms)
        except OffsetOutOfRangeError as error:  # the broker has just removed old messages
            consumer.offset = error.first
            continue
        except DecompressError as error:
            tell(f"offset {consumer.offset} of partition {place[0]} is skipped: {error}")
            consumer.offset += 1
            continue
        if not messages and not wait_ms:
            return
        printer.print(place[0], messages)


class _Printer:
    """Prints messages until the count, if there is one, is reached. `left` is what is left of it."""

    def __init__(self, left: int | None, *, as_json: bool) -> None:
        self.left = left
        self._as_json = as_json

    def print(self, partition: int, messages: Sequence[ConsumedMessage]) -> None:
        for message in messages[: self.left]:
            if self._as_json:
                show_json(self._json(partition, message))
            else:
                show_payload(message.payload)
        sys.stdout.flush()
        if self.left is not None:
            self.left = max(0, self.left - len(messages))

    def _json(self, partition: int, message: ConsumedMessage) -> dict[str, int | str]:
        place: dict[str, int | str] = {"partition": partition, "offset": message.offset}
        try:
            return place | {"payload": message.payload.decode()}
        except UnicodeDecodeError:
            return place | {"payload_base64": b64encode(message.payload).decode()}


def delete_topic(arguments: argparse.Namespace) -> int:
    """Delete a topic."""
    return _delete(arguments, "topic", "partition", BrokerClient.delete_topic)


def delete_group(arguments: argparse.Namespace) -> int:
    """Delete the positions of a group."""
    return _delete(arguments, "group", "position", BrokerClient.delete_group)


def _delete(
    arguments: argparse.Namespace, kind: str, part: str, delete: Callable[[BrokerClient, str], Awaitable[int]]
) -> int:
    """Delete what the arguments name, and print how many parts it had."""

    async def ask(client: BrokerClient) -> int:
        count = await delete(client, arguments.name)
        if arguments.json:
            show_json({kind: arguments.name, f"{part}s": count})
        else:
            show(f"deleted the {kind} {arguments.name} with {counted(count, part)}")
        return OK

    return _run(arguments, ask)


def metrics(arguments: argparse.Namespace) -> int:
    """Print counters."""

    async def ask(client: BrokerClient) -> int:
        found = await client.metrics()
        if arguments.json:
            show_json(found)
        else:
            for name, value in found.items():
                show(f"tunnel_broker_{printable(name)} {value:g}")
        return OK

    return _run(arguments, ask)
