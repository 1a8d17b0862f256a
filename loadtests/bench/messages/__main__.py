"""Measures the speed of messages through a relay on this machine. Relay, sender, receiver and broker are processes.

The receiver checks every message, and a message counts when the receiver has reported it. Each case takes a few
seconds.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec
import uvloop

from loadtests.bench.messages.broker_cases import BROKER, BROKER_PARTS, broker_cases, disk_times
from loadtests.bench.messages.cases import CpuWatch, Row, async_producer, calls, large_beside_pings, sync_producer
from loadtests.harness.experiment import command
from loadtests.harness.nginx import Nginx
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, relay_command, says_event
from tunnel import attach
from tunnel.messages import Codec

CASES = ("sync", "async", "calls", "large", "broker")


async def measure(options: argparse.Namespace, relay: str, pids: dict[str, int]) -> AsyncIterator[Row]:
    """Run the cases; yield each row when it is measured."""
    cases = options.cases.split(",")
    parts = BROKER_PARTS if "broker" in cases else [case for case in cases if case in BROKER_PARTS]
    for carrier in options.carriers.split(","):
        async with attach(relay, carrier=carrier, linger=2.0) as attachment:
            while carrier == "link" and "link" not in attachment.stats().carrier:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            if "sync" in cases:
                for acknowledged in (False, True):
                    row = await sync_producer(attachment, options.seconds, acknowledged=acknowledged)
                    yield Row(f"{carrier}: {row.name}", row.value, row.unit)
            if "async" in cases:
                for codec in Codec:
                    watch = CpuWatch(pids)
                    row = await async_producer(attachment, codec, options.count, options.batch)
                    yield Row(f"{carrier}: {row.name}", row.value, row.unit)
                    for row in watch.row(options.count, "us/message"):
                        yield row
            if parts:
                async for row in broker_cases(attachment, parts, options.count, options.batch, options.seconds, pids):
                    yield Row(f"{carrier}: {row.name}", row.value, row.unit)
            if carrier != "link":
                continue
            if "calls" in cases:
                watch = CpuWatch(pids)
                rows = await calls(attachment, options.callers, options.seconds)
                for row in rows + watch.row(rows[0].value * options.seconds, "us/call"):
                    yield row
            if "large" in cases:
                watch = CpuWatch(pids)
                rows = await large_beside_pings(attachment, options.mib << 20, pids)
                for row in rows + watch.row(options.mib, "us/MiB"):
                    yield row


async def run(options: argparse.Namespace) -> list[Row]:
    rows: list[Row] = []
    has_broker = not {"broker", *BROKER_PARTS}.isdisjoint(options.cases.split(","))
    with hold_port() as port:
        relay = f"http://127.0.0.1:{port}"
        serve = relay_command("serve", "--open", "--listen", f"127.0.0.1:{port}")
        command = python_command("loadtests.bench.messages.peer", relay)
        async with AsyncExitStack() as stack:
            server = await stack.enter_async_context(Process(serve, ready=says_event("listening")))
            near = stack.enter_context(Nginx(relay)).url if options.nginx else relay
            peer = await stack.enter_async_context(Process(command, ready=lambda line: line == "ready\n"))
            if has_broker:
                place = options.dir or stack.enter_context(TemporaryDirectory(prefix="tunnel-broker-"))
                broker = python_command("tunnel_client.cli.broker", "serve", "--dir", place, "--relay", relay)
                broker += ["--service", BROKER, "--carrier", "link"]
                receiver = await stack.enter_async_context(Process(broker, ready=says_event("listening")))
            pids = {"sender": os.getpid(), "relay": server.pid, "receiver": peer.pid}
            if has_broker:
                pids["broker"] = receiver.pid
                for row in await asyncio.to_thread(disk_times, Path(place)):
                    rows.append(row)
                    show(row, options)
            async for row in measure(options, near, pids):
                rows.append(row)
                show(row, options)
    return rows


def show(row: Row, options: argparse.Namespace) -> None:
    """Print a row of the table."""
    if not options.json:
        print(f"{row.name:<58}{row.value:>12,.1f} {row.unit}", flush=True)


def main(arguments: list[str] | None = None) -> int:
    """Run the benchmark, and print the table or JSON."""
    parser = command("bench.messages", __doc__, "--cases async,calls --carriers link")
    parser.add_argument(
        "--cases",
        default=",".join(CASES),
        help=f"cases, of {', '.join(CASES)}; parts of broker are {', '.join(BROKER_PARTS)} (default: all)",
    )
    parser.add_argument("--carriers", default="link,poll", help="carriers (default: link,poll)")
    parser.add_argument("--seconds", type=float, default=3.0, help="duration of sync, calls and push (default 3)")
    parser.add_argument(
        "--count", type=int, default=400_000, help="messages of async, store and fetch (default 400000)"
    )
    parser.add_argument("--batch", type=int, default=200, help="messages per batch (default 200)")
    parser.add_argument("--callers", type=int, default=64, help="callers on one connection (default 64)")
    parser.add_argument("--mib", type=int, default=1024, help="size of the large packet, in MiB (default 1024)")
    parser.add_argument("--dir", default="", help="directory of the broker (default: a temporary one)")
    parser.add_argument(
        "--nginx", action="store_true", help="send through an nginx with its default settings, with --carriers poll"
    )
    options = parser.parse_args(arguments)
    if options.nginx and options.carriers != "poll":
        parser.error("--nginx passes no links with its default settings: add --carriers poll")
    if not options.json:
        load = os.getloadavg()[0]
        print(
            f"{os.cpu_count()} cores, load {load:.1f}, Python {platform.python_version()}, uvloop; 100-byte messages\n"
        )
    rows = uvloop.run(run(options))
    if options.json:
        print(json.dumps(msgspec.to_builtins(rows)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
