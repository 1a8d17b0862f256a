"""A user's rate at the relay: how well it is kept, and how it affects others: `python -m loadtests.bench.rate`.

One process moves bytes through an echo server as fast as it may, as the user ann, whose rate the relay limits. Another
connection of ann and one of bob, whose rate is not limited, send echoes of 64 bytes, first alone and then beside the
transfer. With `--at client` the relay limits no user: the transfer limits itself (`tunnel.attach(rate=...)`). The
echoes of ann then go through the same attachment as the transfer, so that its limit may delay them.
"""

import argparse
import asyncio
import json
import os
import sys
import time
from contextlib import ExitStack
from pathlib import Path
from random import SystemRandom
from tempfile import TemporaryDirectory

import msgspec

from loadtests.bench.road import machine
from loadtests.harness.experiment import command
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import NotReadyError, Process, cpu_seconds, python_command, relay_command, says_event
from loadtests.harness.transfer import percentile
from tunnel import StreamReader, StreamWriter, attach
from tunnel.ground.rates import parse_rate, show_rate
from tunnel_servlet.access.tokens import make_token
from tunnel_servlet.command.files import write_users

__all__ = ["Found", "main"]

_CHUNK = bytes(64 << 10)
_ECHO = bytes(64)
_PAUSE_S = 0.01  # pause between echoes
_USERS = ("ann", "bob")
_ECHOES = [f"{user}_{state}_p{percent}" for user in _USERS for state in ("alone", "beside") for percent in (50, 99)]
_CONFIG = """\
listen = ["127.0.0.1:{port}"]
[everyone]
connect = ["127.0.0.1:*"]
[users.ann]
{line}
"""


class Found(msgspec.Struct, kw_only=True):
    """The result. Times of echoes are in milliseconds."""

    rate: int
    carrier: str
    up_of_rate: float
    down_of_rate: float
    seconds: float
    ann_alone_p50: float
    ann_alone_p99: float
    ann_beside_p50: float
    ann_beside_p99: float
    bob_alone_p50: float
    bob_alone_p99: float
    bob_beside_p50: float
    bob_beside_p99: float
    relay_cpu_s: float
    client_cpu_s: float


async def transfer(url: str, port: int, carrier: str, seconds: float, rate: str) -> None:
    """Move bytes through the echo server; print JSON with the bytes per second that went each way.

    With a rate, the JSON also has the times of echoes on another connection of this attachment, which were sent alone
    and beside the transfer.
    """
    async with attach(url, token=os.environ["TUNNEL_TOKEN"], proxy=None, carrier=carrier, rate=rate) as attachment:
        pair = await attachment.open_connection("127.0.0.1", port)
        echoes = [await _echo(pair, min(seconds, 5.0))] if rate else []
        reader, writer = await attachment.open_connection("127.0.0.1", port)
        sent = received = 0

        async def read() -> None:
            nonlocal received
            while part := await reader.read(1 << 18):
                received += len(part)

        async def write() -> None:
            nonlocal sent
            while True:
                writer.write(_CHUNK)
                await writer.drain()
                sent += len(_CHUNK)

        tasks = [asyncio.ensure_future(read()), asyncio.ensure_future(write())]
        print("moving", flush=True)
        await asyncio.sleep(2.0)  # until the buffers on the way are full
        began, sent_before, received_before = time.monotonic(), sent, received
        if rate:
            echoes.append(await _echo(pair, seconds))
        else:
            await asyncio.sleep(seconds)
        elapsed = time.monotonic() - began
        rates = (sent - sent_before) / elapsed, (received - received_before) / elapsed
        moved = {"up": rates[0], "down": rates[1], "cpu_s": time.process_time(), "echoes": echoes}
        print(json.dumps(moved), flush=True)
        for task in tasks:
            task.cancel()
        writer.transport.abort()
        pair[1].close()


async def _echo(streams: tuple[StreamReader, StreamWriter], seconds: float) -> list[float]:
    """Return the milliseconds of each echo."""
    reader, writer = streams
    found: list[float] = []
    ends = time.monotonic() + seconds
    while time.monotonic() < ends:
        began = time.monotonic()
        writer.write(_ECHO)
        await reader.readexactly(len(_ECHO))
        found.append((time.monotonic() - began) * 1000)
        await asyncio.sleep(_PAUSE_S)
    return found


async def _measure(
    url: str, tokens: dict[str, str], port: int, bulk: Process, relay: Process, seconds: float
) -> dict[str, float]:
    async with (
        attach(url, token=tokens["ann"], proxy=None, carrier="link") as ann,
        attach(url, token=tokens["bob"], proxy=None, carrier="link") as bob,
    ):
        pairs = [await each.open_connection("127.0.0.1", port) for each in (ann, bob)]
        alone = await asyncio.gather(*(_echo(pair, min(seconds, 5.0)) for pair in pairs))
        with bulk:
            await bulk.ready()
            await asyncio.sleep(2.0)
            before = cpu_seconds(relay.pid)
            beside = await asyncio.gather(*(_echo(pair, seconds - 1) for pair in pairs))
            relay_s = cpu_seconds(relay.pid) - before
            await asyncio.to_thread(bulk.wait, 60.0)
        for _, writer in pairs:
            writer.close()
    moved = json.loads(bulk.output.splitlines()[-1])
    if moved["echoes"]:  # with --at client: only echoes through the transfer's attachment can be delayed
        alone[0], beside[0] = moved["echoes"]
    values = [
        round(percentile(each, percent / 100), 2)
        for pair in zip(alone, beside, strict=True)
        for each in pair
        for percent in (50, 99)
    ]
    echoes = dict(zip(_ECHOES, values, strict=True))
    measured = {"seconds": seconds, "relay_cpu_s": round(relay_s, 2), "client_cpu_s": round(moved["cpu_s"], 2)}
    return {"up_of_rate": moved["up"], "down_of_rate": moved["down"], **measured, **echoes}


def measure(rate: str, carrier: str, seconds: float, *, at_client: bool = False) -> Found:
    """Start relay, echo server and transfer, and return what was measured."""
    with ExitStack() as stack:
        directory = Path(stack.enter_context(TemporaryDirectory(prefix="tunnel-")))
        port = stack.enter_context(hold_port())
        made = {user: make_token(SystemRandom()) for user in _USERS}
        write_users(directory / "tokens.toml", {user: (key,) for user, (_, key) in made.items()})
        line = "" if at_client else f'rate = "{rate}"'
        (directory / "relay.toml").write_text(_CONFIG.format(port=port, line=line), encoding="utf-8")
        command = relay_command("serve", "-c", str(directory / "relay.toml"))
        relay = stack.enter_context(Process(command, ready=says_event("listening")))
        echo_command = python_command("loadtests.harness.echo")
        echo = stack.enter_context(Process(echo_command, ready=lambda line: line.startswith("echo ")))
        target = int(echo.ready_line.split()[1])
        url = f"http://127.0.0.1:{port}"
        words = ["--transfer", url, str(target), "--carrier", carrier, "--seconds", str(seconds)]
        words += ["--rate", rate if at_client else ""]
        tokens = {user: token for user, (token, _) in made.items()}
        bulk = Process(
            python_command("loadtests.bench.rate", *words),
            ready=lambda line: line.startswith("moving"),
            environment={"TUNNEL_TOKEN": tokens["ann"]},
        )
        found = asyncio.run(_measure(url, tokens, target, bulk, relay, seconds))
    for direction in ("up_of_rate", "down_of_rate"):
        found[direction] = round(found[direction] / parse_rate(rate), 4)
    return Found(rate=parse_rate(rate), carrier=carrier, **found)


def _render(found: Found) -> str:
    moved = f"up {found.up_of_rate:.1%}, down {found.down_of_rate:.1%} of the rate"
    lines = [f"{show_rate(found.rate)} over {found.carrier}, {found.seconds:g} s: {moved}"]
    lines.append(f"{'echo, ms':<24}{'p50':>8}{'p99':>8}")
    for user, text in (("ann", "limited user"), ("bob", "other user")):
        for state in ("alone", "beside"):
            values = [getattr(found, f"{user}_{state}_p{percent}") for percent in (50, 99)]
            lines.append(f"{text + ', ' + state:<24}{values[0]:>8.2f}{values[1]:>8.2f}")
    lines.append(f"processor time: relay {found.relay_cpu_s:.2f} s, transferring client {found.client_cpu_s:.2f} s")
    return "\n".join(lines)


def main(arguments: list[str] | None = None) -> int:
    """Measure and print. Return 0, or 3 if a process did not start. A usage error exits with 2."""
    parser = command("bench.rate", __doc__, '--rate "5 MiB/s" --carrier poll')
    parser.add_argument("--rate", default="20 MiB/s", help="the rate of the limited user (default: 20 MiB/s)")
    parser.add_argument(
        "--carrier", choices=("link", "poll"), default="link", help="carrier of the transfer (default: link)"
    )
    parser.add_argument("--seconds", type=float, default=10.0, help="duration of the measurement (default: 10)")
    parser.add_argument(
        "--at", choices=("relay", "client"), default="relay", help="where the rate is limited (default: relay)"
    )
    parser.add_argument("--transfer", nargs=2, metavar=("URL", "PORT"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.transfer:
        url, port = options.transfer
        asyncio.run(transfer(url, int(port), options.carrier, options.seconds, options.rate))
        return 0
    try:
        parse_rate(options.rate)
    except ValueError as error:
        parser.error(f"--rate: {error}")
    try:
        found = measure(options.rate, options.carrier, options.seconds, at_client=options.at == "client")
    except NotReadyError as error:
        print(f"rate: {error}", file=sys.stderr)
        return 3
    if options.json:
        print(json.dumps({"machine": machine(), **msgspec.to_builtins(found)}))
    else:
        print(f"{machine()}\nload average: {os.getloadavg()[0]:.2f}\n{_render(found)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
