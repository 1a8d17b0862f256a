"""One run: kills broker, producers, consumers and relay while messages flow, then counts what each group has got."""

from __future__ import annotations

import shutil
import tempfile
import time
from array import array
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from loadtests.broker.sides import BATCH, SERVICE, TOPIC, ahead_max, taken_in
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, relay_command, says_event

__all__ = ["GROUPS", "PARTITIONS", "Outcome", "check", "run"]

GROUPS = ("billing", "search", "audit")
PARTITIONS = 2  # each has a producer; the first reaches the broker over TCP, the second through the relay
_POLL_S = 0.02


class Outcome(msgspec.Struct):
    """The result of a run.

    `received` is the sum over all groups: a message that three groups took in counts three times.
    `kills` counts only processes that were running; one that had ended by itself is only started again."""

    messages: int
    received: int = 0
    lost: int = 0
    lost_acknowledged: int = 0
    twice: int = 0
    out_of_order: int = 0
    came_again: int = 0  # messages that came to a consumer again after its last start; it knew them by the offset
    kills: dict[str, int] = msgspec.field(default_factory=dict)
    kills_wanted: int = 0
    seconds: float = 0.0
    finished: bool = False

    @property
    def is_good(self) -> bool:
        """Whether every group got every message exactly once and in order, although processes were killed."""
        is_whole = self.received >= len(GROUPS) * (self.messages // PARTITIONS * PARTITIONS) > 0
        is_killed = sum(self.kills.values()) > 0 or not self.kills_wanted
        is_clean = not (self.lost or self.lost_acknowledged or self.twice or self.out_of_order)
        return self.finished and is_whole and is_killed and is_clean


def check(place: Path, per_partition: int, outcome: Outcome) -> None:
    """Count the messages that the groups have taken in, lack, took in twice, or took in out of order."""
    for group in GROUPS:
        for partition in range(PARTITIONS):
            numbers = array("Q", (place / group / str(partition)).read_bytes())
            numbers.byteswap()
            outcome.received += len(numbers)
            seen = bytearray(per_partition)
            for index, number in enumerate(numbers):
                outcome.out_of_order += number != index
                if number < per_partition:
                    outcome.twice += seen[number]
                    seen[number] = 1
            outcome.lost += seen.count(0)


def run(
    messages: int,
    kills: int,
    *,
    seed: int = 0,
    limit_s: float = 3600.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Send `messages` to three groups while processes are killed `kills` times, at random points of the progress.

    Blocks until the end and removes all of its files.
    """
    random = Random(seed)
    outcome = Outcome(messages, kills_wanted=kills)
    place = Path(tempfile.mkdtemp(prefix="tunnel-broker-"))
    per_partition = messages // PARTITIONS
    try:
        with hold_port() as relay_port, hold_port() as broker_port:
            processes = _processes(place, relay_port, broker_port, per_partition)
            victims = [list(processes)[index % len(processes)] for index in range(kills)]
            random.shuffle(victims)
            # All kills come before the producers' last batches: after these, a producer has nothing more to send, and
            # cannot be killed.
            last = max(1, messages - PARTITIONS * (ahead_max(per_partition) + 2 * BATCH))
            marks = sorted(random.randrange(last) for _ in range(kills))
            outcome.kills = dict.fromkeys(processes, 0)
            try:
                for process in processes.values():
                    process.start().wait_ready()
                start = time.monotonic()
                _watch(outcome, processes, place, list(zip(marks, victims, strict=True)), start + limit_s, progress)
                outcome.seconds = time.monotonic() - start
            finally:
                for process in processes.values():
                    if process.is_running:
                        process.kill()
        _read_outputs(outcome, processes, progress)
        check(place, per_partition, outcome)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return outcome


def _processes(place: Path, relay_port: int, broker_port: int, per_partition: int) -> dict[str, Process]:
    relay, broker = f"http://127.0.0.1:{relay_port}", f"127.0.0.1:{broker_port}"
    serve = python_command(
        "tunnel_client.cli.broker",
        *("serve", "--dir", str(place / "broker"), "--listen", broker, "--topic", f"{TOPIC}:{PARTITIONS}"),
        *("--relay", relay, "--service", SERVICE, "--carrier", "link", "--segment-bytes", "8m"),
    )
    processes = {
        "relay": Process(
            relay_command("serve", "--open", "--listen", f"127.0.0.1:{relay_port}"), ready=says_event("listening")
        ),
        "broker": Process(serve, ready=says_event("listening")),
    }
    for partition in range(PARTITIONS):
        road = broker if partition == 0 else relay
        processes[f"producer {partition}"] = _side("producer", road, place, partition, per_partition, *GROUPS)
    for index, group in enumerate(GROUPS):
        road = relay if index == 0 else broker
        processes[group] = _side("consumer", road, place / group, group, PARTITIONS, per_partition * PARTITIONS)
    return processes


def _side(name: str, *arguments: object) -> Process:
    command = python_command("loadtests.broker.sides", name, *map(str, arguments))
    return Process(command, ready=lambda line: line.startswith("ready"))


def _received(place: Path) -> int:
    """Return the number of messages that the slowest group has taken in."""
    return min(sum(taken_in(place, group, partition) for partition in range(PARTITIONS)) for group in GROUPS)


def _watch(
    outcome: Outcome,
    processes: dict[str, Process],
    place: Path,
    plan: list[tuple[int, str]],
    deadline: float,
    progress: Callable[[str], None],
) -> None:
    """Kill and restart processes as planned, until all kills are done and every group has every message, or until the
    deadline."""
    total = outcome.messages // PARTITIONS * PARTITIONS
    before = -1  # messages at the last kill: the next kill waits until more, or all of them, have come
    while time.monotonic() < deadline:
        received = _received(place)
        if plan and received >= min(plan[0][0], total - 1) and (received > before or received >= total):
            _, victim = plan.pop(0)
            was_running = processes[victim].is_running
            if was_running:
                processes[victim].kill()
                outcome.kills[victim] += 1
            processes[victim].start()
            before = received
            done = "killed" if was_running else "started again"
            progress(f"{received:>9,} of {total:,}: {done} {victim}, {len(plan)} to come")
        if received >= total and not plan:
            outcome.finished = True
            return
        time.sleep(_POLL_S)


def _read_outputs(outcome: Outcome, processes: dict[str, Process], progress: Callable[[str], None]) -> None:
    for name, process in processes.items():
        for line in process.output.splitlines():
            words = line.split()
            if words[:1] == ["lost"]:
                outcome.lost_acknowledged += int(words[1])
            if words[:1] == ["consumed"]:
                outcome.came_again += int(words[3])
        if not outcome.finished:
            progress(f"--- {name}\n{process.output[-3000:]}")
