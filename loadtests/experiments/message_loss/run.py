"""One run of the experiment: starts the processes, breaks the path, and builds the report."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path

import structlog

from loadtests.experiments.message_loss.protocol import CONTROL, HELLO
from loadtests.experiments.message_loss.records import Recorder, received_ids
from loadtests.experiments.message_loss.report import Report
from loadtests.experiments.message_loss.roads import RawRoad, Road, TunnelRoad
from loadtests.experiments.message_loss.sender import Sender
from loadtests.experiments.message_loss.statistics import Phase, PhaseStatistics
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, relay_command, says_event

__all__ = ["Experiment", "run"]

_log = structlog.get_logger("experiment")
_SERVERS = 3
_GREETING_S = 0.1
_GREETED_S = 60.0
_ENDING_S = 120.0
_ASK_S = 0.005  # pause between two calls of `ask` for the status; the sender asks as often


@dataclass(frozen=True, slots=True)
class Experiment:
    """The settings of one run."""

    mode: str = "raw"
    broker: str = "builtin"
    rate: int = 1000  # messages per second
    size_bytes: int = 12_288
    receivers: int = 3
    break_after_s: float = 5.0
    delay_ms: float = 20.0
    outage_s: float = 2.0  # from the kill of the path to its restart; a tunnel reports no outage of less than 0.75 s
    carrier: str = "poll"
    directory: Path = Path("build/message-loss")


@dataclass(frozen=True, slots=True)
class Broken:
    """The break: how long it took, and when the sender saw each sign of it, in milliseconds after the kill."""

    outage_s: float
    signs: dict[str, int]


async def run(experiment: Experiment) -> Report:
    """Run phase 1, the break and phase 2; return the report."""
    directory = experiment.directory / f"{experiment.mode}-{experiment.broker}"
    directory.mkdir(parents=True, exist_ok=True)
    for old in directory.glob("*.jsonl"):
        old.unlink()
    async with contextlib.AsyncExitStack() as stack:
        ports = [stack.enter_context(hold_port()) for _ in range(_SERVERS)]
        await stack.enter_async_context(_broker(experiment.broker, ports))
        receivers = [
            await stack.enter_async_context(_receiver(ports, number, directory))
            for number in range(experiment.receivers)
        ]
        path, road = await _road(stack, experiment, ports[0])
        statistics = PhaseStatistics()
        with Recorder(directory, "sender", statistics) as record:
            async with road:
                sender = Sender(road, statistics, record, experiment.size_bytes)
                try:
                    broken = await _both_phases(experiment, sender, road, path, receivers, statistics)
                finally:
                    await sender.close()
    names = [f"receiver-{number}.jsonl" for number in range(experiment.receivers)]
    ids = [received_ids(directory / name) for name in names]
    report = Report.of(experiment.mode, experiment.broker, experiment.size_bytes, ids, statistics)
    report.outage_ms = round(broken.outage_s * 1000)
    report.signs = broken.signs
    return report


async def _both_phases(
    experiment: Experiment,
    sender: Sender,
    road: Road,
    path: Process,
    receivers: list[Process],
    statistics: PhaseStatistics,
) -> Broken:
    """Run both phases and wait for the receivers to end; return what was seen of the break."""
    await sender.start()
    await _greet(sender, receivers)
    signs = road.signs
    signs.seen.clear()
    signs.connection.back.clear()

    async def break_it() -> float:
        await asyncio.sleep(experiment.break_after_s)
        path.kill()
        broken = time.monotonic()
        _log.info("the path was killed")
        await asyncio.sleep(experiment.outage_s)
        path.start()
        await path.ready()
        return broken

    breaking = asyncio.get_running_loop().create_task(break_it())
    await sender.publish_at(experiment.rate, signs.is_broken)
    statistics.phase = Phase.AFTER
    _log.info("disconnected", signs=[sign.value for sign in signs.seen])
    while not breaking.done():
        signs.ask()  # the first sign has ended phase 1; the report tells when the others came
        await asyncio.sleep(_ASK_S)
    broken = await breaking
    await road.healed()
    outage_s = time.monotonic() - broken
    sender.publish_to(CONTROL)
    await sender.emptied()
    for receiver in receivers:
        await asyncio.to_thread(receiver.wait, _ENDING_S)
    return Broken(outage_s, signs.after_ms(broken))


async def _greet(sender: Sender, receivers: list[Process]) -> None:
    """Send greetings until every receiver has got one: then all servers know all subscriptions."""
    async with asyncio.timeout(_GREETED_S):
        while not all('"greeted"' in receiver.output for receiver in receivers):
            sender.publish_to(HELLO)
            await asyncio.sleep(_GREETING_S)


@contextlib.asynccontextmanager
async def _broker(kind: str, ports: list[int]) -> AsyncIterator[None]:
    """Run a broker of several servers that forward messages to each other."""
    async with contextlib.AsyncExitStack() as stack:
        if kind == "builtin":
            command = python_command("loadtests.experiments.message_loss.broker", *map(str, ports))
            await stack.enter_async_context(Process(command, ready=says_event("listening")))
        else:
            between = [stack.enter_context(hold_port()) for _ in ports]
            routes = ",".join(f"nats://127.0.0.1:{port}" for port in between)
            for port, cluster in zip(ports, between, strict=True):
                listen = ["--addr", "127.0.0.1", "--port", str(port), "--name", f"server-{port}"]
                joined = ["--cluster_name", "cml", "--cluster", f"nats://127.0.0.1:{cluster}", "--routes", routes]
                command = ["nats-server", *listen, *joined]
                await stack.enter_async_context(Process(command, ready=lambda line: "Server is ready" in line))
        yield


def _receiver(ports: list[int], number: int, directory: Path) -> Process:
    """Return a receiver process; receivers use servers 2 and 3 in turn."""
    port = ports[1 + number % 2]
    arguments = ["--port", str(port), "--name", f"receiver-{number}", "--directory", str(directory)]
    return Process(
        python_command("loadtests.experiments.message_loss.receiver", *arguments), ready=says_event("subscribed")
    )


async def _road(stack: contextlib.AsyncExitStack, experiment: Experiment, broker_port: int) -> tuple[Process, Road]:
    """Start the path that will be killed; return it and the sender's road over it.

    The path leads to the broker, or to a relay in front of the broker.
    """
    path_port = stack.enter_context(hold_port())
    if experiment.mode == "raw":
        behind = broker_port
        road: Road = RawRoad(path_port)
    else:
        behind = stack.enter_context(hold_port())
        allow = f"127.0.0.1:{broker_port}"
        command = relay_command("serve", "--open", "--listen", f"127.0.0.1:{behind}", "--allow", allow)
        await stack.enter_async_context(Process(command, ready=says_event("listening")))
        road = TunnelRoad(path_port, broker_port, experiment.carrier)
    arguments = ["--listen", str(path_port), "--to", str(behind), "--delay-ms", str(experiment.delay_ms)]
    command = python_command("loadtests.experiments.message_loss.path", *arguments)
    return await stack.enter_async_context(Process(command, ready=says_event("listening"))), road
