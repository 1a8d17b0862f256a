"""One run: kills relay, sender and receiver in random order while messages flow, then counts those in the inbox."""

import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from random import Random

import msgspec

from loadtests.experiments.outbox.sides import make_payload, payload_number
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import Process, python_command, relay_command, says_event
from tunnel.messages import Inbox

__all__ = ["Outcome", "check", "run"]

_POLL_S = 0.02
_RECORD_BYTES = 10 + 33 + 100  # of a message in the inbox; only used to estimate the progress
_SIDES = ("sender", "receiver", "relay")


class Outcome(msgspec.Struct):
    """The result of a run."""

    messages: int
    received: int = 0
    lost: int = 0
    twice: int = 0
    out_of_order: int = 0
    altered: int = 0
    kills: dict[str, int] = msgspec.field(default_factory=lambda: dict.fromkeys(_SIDES, 0))
    seconds: float = 0.0
    idle_kills: int = 0  # those of `kills` that came when everything had been delivered, and so prove nothing
    recovery_s_max: float = 0.0  # from a kill until the process is back and messages arrive again
    finished: bool = False

    @property
    def is_good(self) -> bool:
        """Whether the run finished with no message lost, received twice, altered or out of order, and a kill, if there
        was any, hit messages on their way."""
        is_proof = self.received > 0 and (self.idle_kills < sum(self.kills.values()) or not any(self.kills.values()))
        return self.finished and is_proof and not (self.lost or self.twice or self.out_of_order or self.altered)


def check(directory: Path, outcome: Outcome) -> None:
    """Count and check the messages in the inbox."""
    seen = bytearray(outcome.messages)
    expected = 0
    with Inbox.open(directory) as inbox:
        for record in inbox.read(0, None):
            outcome.received += 1
            number = payload_number(record.payload)
            if number >= outcome.messages or record.payload != make_payload(number):
                outcome.altered += 1
                continue
            outcome.twice += seen[number]
            outcome.out_of_order += number != expected
            seen[number] = 1
            expected = number + 1
    outcome.lost = seen.count(0)


def run(
    messages: int,
    kills: int,
    *,
    seed: int = 0,
    limit_s: float = 3600.0,
    progress: Callable[[str], None] = lambda text: None,
) -> Outcome:
    """Deliver `messages` while processes are killed `kills` times, at random points of the progress.

    Blocks until the end and removes all of its files.
    """
    random = Random(seed)
    outcome = Outcome(messages)
    place = Path(tempfile.mkdtemp(prefix="tunnel-outbox-"))
    inbox = place / "inbox"
    victims = [_SIDES[index % 3] for index in range(kills)]
    random.shuffle(victims)
    marks = sorted(random.randrange(messages) for _ in range(kills))
    try:
        with hold_port() as port:
            relay = f"http://127.0.0.1:{port}"
            processes = {
                "relay": Process(
                    relay_command("serve", "--open", "--listen", f"127.0.0.1:{port}"), ready=says_event("listening")
                ),
                "receiver": _side("receiver", relay, inbox),
                "sender": _side("sender", relay, place / "outbox", str(messages)),
            }
            with processes["relay"], processes["receiver"], processes["sender"]:
                start = time.monotonic()
                _watch(outcome, processes, inbox, list(zip(marks, victims, strict=True)), start + limit_s, progress)
                outcome.seconds = time.monotonic() - start
                if not outcome.finished:
                    for name, process in processes.items():
                        progress(f"--- {name}, running: {process.is_running}\n{process.output[-3000:]}")
        check(inbox, outcome)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    return outcome


def _side(name: str, *arguments: object) -> Process:
    command = python_command("loadtests.experiments.outbox.sides", name, *map(str, arguments))
    return Process(command, ready=lambda line: line.startswith("ready"))


def _received(inbox: Path) -> int:
    """Estimate the number of messages in the inbox from the size of its files."""
    sizes = 0
    for path in inbox.glob("*.log"):
        try:
            sizes += path.stat().st_size
        except FileNotFoundError:
            continue
    return sizes // _RECORD_BYTES


def _watch(
    outcome: Outcome,
    processes: dict[str, Process],
    inbox: Path,
    plan: list[tuple[int, str]],
    deadline: float,
    progress: Callable[[str], None],
) -> None:
    """Kill and restart processes as planned, until all kills are done and the sender reports that it has delivered
    everything, or until the deadline."""
    killed_at, killed, before = 0.0, "", -1
    while time.monotonic() < deadline:
        received = _received(inbox)
        if killed and before < 0 and processes[killed].ready_line:
            before = received
        if killed and 0 <= before < received:
            outcome.recovery_s_max = max(outcome.recovery_s_max, time.monotonic() - killed_at)
            killed = ""
        # Kill again only after messages have arrived since the last kill, so that each recovery is measured separately.
        if plan and received >= plan[0][0] and not killed:
            _, killed = plan.pop(0)
            killed_at, before = time.monotonic(), -1
            processes[killed].kill()
            processes[killed].start()
            outcome.kills[killed] += 1
            progress(f"{received:>9,} of {outcome.messages:,}: killed the {killed}, {len(plan)} to come")
        if "delivered" in processes["sender"].output and not plan:
            outcome.finished = True
            return
        if "delivered" in processes["sender"].output and not processes["sender"].is_running:
            # All messages arrived before the last kills. Carry these out nevertheless, on idle processes.
            _, name = plan.pop(0)
            processes[name].kill()
            outcome.kills[name] += 1
            outcome.idle_kills += 1
            processes[name].start().wait_ready()
            continue
        time.sleep(_POLL_S)
