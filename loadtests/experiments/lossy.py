"""The goodput over a very bad network, in both directions: `python -m loadtests.experiments.lossy --size 256MiB`.

A client on carrier poll sends through the fault proxy and a relay to a service on a link. Bytes go up, then down; both
digests must be right. The first case has no faults. The second has 5 % dropped requests, 5 % dropped responses, 2 %
duplicates and 1 % bodies with flipped bits; the share of the rate that remains is printed. Two more cases repeat both
with a delay of 50 ms in each direction and silent drops.
"""

import asyncio
import json
import os
import sys
import time
from collections.abc import Iterator
from random import Random

import msgspec
from xxhash import xxh3_128

import tunnel
from loadtests.faultproxy.grammar import parse_size_bytes
from loadtests.harness.experiment import command, perform
from loadtests.harness.processes import Process, python_command
from loadtests.harness.relays import RelayProcess

__all__ = ["CASES", "Case", "Outcome", "main", "run_case"]

GOAL = 0.4  # share of the rate without faults
_SERVICE = "lossy"
_BLOCK_BYTES = 256 * 1024
_LATE_SHARE = 16  # the cases with a delay ("late") move the bytes divided by this
_FAULTS = ("--duplicate", "0.02", "--flip", "0.01")


class Case(msgspec.Struct, frozen=True):
    """One case: the options of the fault proxy."""

    name: str
    options: tuple[str, ...]
    share: int = 1  # divides the size
    compared_with: str = ""


CASES = (
    Case("no faults", ()),
    Case("faults", ("--drop-request", "0.05", "--drop-response", "0.05", *_FAULTS), compared_with="no faults"),
    Case("late", ("--delay", "50ms"), share=_LATE_SHARE),
    Case(
        "late, silent faults",
        ("--drop-request", "0.05:silent", "--drop-response", "0.05:silent", *_FAULTS, "--delay", "50ms"),
        share=_LATE_SHARE,
        compared_with="late",
    ),
)


class Outcome(msgspec.Struct):
    """The result of one case. `faults` are those that the proxy injected, by kind.

    `kept` is the rate of both directions together, as a share of that of the case without faults and with the same
    delay.
    """

    name: str
    size_bytes: int
    up_mb_s: float
    down_mb_s: float
    digests_equal: bool
    faults: dict[str, int]
    compared_with: str = ""
    kept: float | None = None

    @property
    def failure(self) -> str:
        """Why the case failed or proves nothing; an empty string if every byte arrived through faults."""
        if not self.digests_equal:
            return "DIGESTS DIFFER"
        if self.compared_with and not self.faults:
            return "NO FAULT WAS INJECTED, so it proves nothing; use a larger --size"
        return ""

    @property
    def seconds_per_byte(self) -> float:
        """Seconds per byte, of both directions added."""
        return 1e-6 / self.up_mb_s + 1e-6 / self.down_mb_s


def _blocks(size: int, seed: int) -> Iterator[bytes]:
    """Yield `size` bytes in blocks. Each begins with its number, so that a swap of blocks changes the digest."""
    body = Random(seed).randbytes(_BLOCK_BYTES - 8)
    for number in range(-(-size // _BLOCK_BYTES)):
        yield (number.to_bytes(8, "big") + body)[: size - number * _BLOCK_BYTES]


async def _send(writer: tunnel.StreamWriter, size: int, seed: int) -> bytes:
    digest = xxh3_128()
    for block in _blocks(size, seed):
        digest.update(block)
        writer.write(block)
        await writer.drain()
    return digest.digest()


async def _receive(reader: tunnel.StreamReader, size: int) -> bytes:
    digest = xxh3_128()
    while size:
        data = await reader.read(min(size, _BLOCK_BYTES))
        if not data:
            raise ConnectionResetError("the stream ended early")
        digest.update(data)
        size -= len(data)
    return digest.digest()


async def _serve(reader: tunnel.StreamReader, writer: tunnel.StreamWriter) -> None:
    """Read the bytes that come up and answer with their digest, then send the same number of bytes down."""
    head = await reader.readexactly(16)
    size, seed = int.from_bytes(head[:8], "big"), int.from_bytes(head[8:], "big")
    writer.write(await _receive(reader, size))
    await reader.readexactly(1)
    await _send(writer, size, seed)
    writer.close()
    await writer.wait_closed()


async def _move(url: str, token: str, size: int, seed: int) -> tuple[float, float, bool]:
    """Transfer in both directions; return the seconds up and down, and whether both digests were right."""
    async with tunnel.attach(url, token=token, proxy=None, carrier="poll") as client:
        reader, writer = await client.open_connection(_SERVICE, timeout=60.0)
        began = time.perf_counter()
        writer.write(size.to_bytes(8, "big") + (seed + 1).to_bytes(8, "big"))
        sent = await _send(writer, size, seed)
        is_equal = await reader.readexactly(16) == sent
        up_s = time.perf_counter() - began
        expected = xxh3_128(b"".join(_blocks(size, seed + 1))).digest()
        began = time.perf_counter()
        writer.write(b"!")
        is_equal &= await _receive(reader, size) == expected
        down_s = time.perf_counter() - began
        writer.close()
        await writer.wait_closed()
    return up_s, down_s, is_equal


async def run_case(case: Case, relay: RelayProcess, size: int, seed: int) -> Outcome:
    """Start the proxy and a service, and run one case."""
    size //= case.share
    command = python_command(
        "loadtests.faultproxy", "--listen", "127.0.0.1:0", "--upstream", relay.url, "--seed", str(seed), "--json",
        *case.options,
    )  # fmt: skip
    token = relay.tokens["client"]
    proxy = Process(command, ready=lambda line: "http://127.0.0.1:" in line)
    async with tunnel.attach(relay.url, token=token, proxy=None, carrier="link") as service:
        await service.start_server(_serve, _SERVICE)
        async with proxy:
            url = "http://127.0.0.1:" + proxy.ready_line.split("http://127.0.0.1:")[1].split()[0].strip("/,;")
            up_s, down_s, is_equal = await _move(url, token, size, seed)
            await asyncio.to_thread(proxy.stop)
    return Outcome(
        case.name, size, size / up_s / 1e6, size / down_s / 1e6, is_equal, _counted(proxy.output), case.compared_with
    )


def _counted(output: str) -> dict[str, int]:
    """Return the faults that the proxy injected, by kind, from the last JSON that it printed."""
    for line in reversed(output.splitlines()):
        if line.startswith("{"):
            faults: dict[str, int] = json.loads(line)["faults"]
            return {kind: count for kind, count in faults.items() if count}
    return {}


async def _run(size: int, seed: int) -> list[Outcome]:
    outcomes: dict[str, Outcome] = {}
    with RelayProcess() as relay:
        for case in CASES:
            outcome = outcomes[case.name] = await run_case(case, relay, size, seed)
            if case.compared_with:
                outcome.kept = outcomes[case.compared_with].seconds_per_byte / outcome.seconds_per_byte
    return list(outcomes.values())


def main(arguments: list[str] | None = None) -> int:
    """Print a line for each case, or JSON.

    Return 0 if every byte was right, 1 if a case proves nothing because none of its faults occurred, 3 without a
    result, and 7 if a digest was wrong.
    """
    parser = command("experiments.lossy", __doc__, "--size 32MiB --seed 7")
    parser.add_argument("--size", default="256MiB", help="bytes each way (default 256MiB; the late cases a sixteenth)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the faults and the bytes (default 1)")
    options = parser.parse_args(arguments)
    try:
        size = parse_size_bytes(options.size)
    except ValueError as error:
        parser.error(f"--size: {error}")
    if size < _LATE_SHARE:
        parser.error(f"--size: there is nothing to transfer: use {_LATE_SHARE} bytes or more")
    load = os.getloadavg()[0]
    head = f"{options.size} each way (late cases 1/{_LATE_SHARE}); load average before: {load:.2f}"
    return perform(
        _run(size, options.seed),
        verdict=_verdict,
        text=lambda outcomes: "\n".join([head, *map(_line, outcomes)]),
        as_json=options.json,
        plain=lambda outcomes: {"load_before": load, "cases": outcomes},
    )


def _line(outcome: Outcome) -> str:
    kept = "" if outcome.kept is None else f"{outcome.kept:6.0%} of the rate without faults (goal {GOAL:.0%})"
    right = outcome.failure or "digests equal"
    return f"{outcome.name:<20}{outcome.up_mb_s:>8.1f} up{outcome.down_mb_s:>8.1f} down MB/s  {right} {kept}"


def _verdict(outcomes: list[Outcome]) -> int:
    if not all(outcome.digests_equal for outcome in outcomes):
        return 7
    return 1 if any(outcome.failure for outcome in outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
