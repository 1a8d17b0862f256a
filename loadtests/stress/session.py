"""One run under Locust: its servers, the measures of each second, and the leftovers at the end.

Importing this module needs Locust, which replaces threads and sockets by those of gevent.
"""

import asyncio
import gc
import json
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gevent
from locust.env import Environment
from locust.runners import MasterRunner, WorkerRunner
from locust.stats import RequestStats

from loadtests.harness.processes import Process, python_command, says_event
from loadtests.stress.measures import object_population, row_of
from loadtests.stress.processinfo import look_at, open_descriptors
from tunnel.malloc import give_back_freed_memory
from tunnel_client.sockets.loop_thread import loop_thread
from tunnel_client.sockets.runtime import default_runtime

__all__ = ["Session", "Weather"]

_POPULATION_S = 10  # pause between counts of the objects, since each count takes a while
# A run fails if the least memory of its windows of time rises too fast (loadtests.stress.gates). That must be memory in
# use, without what malloc keeps after a peak: of 160 MiB at 20 % loss, 60 were unused.
_GIVE_BACK_S = 4  # unused memory is given back at least twice in each window
_CONTROL_S = 60.0
_ACTION = "tunnel"  # the request type of user actions
_METRIC = "METRIC"  # the type of the rows with measures
_SETTLE_S = 15.0  # for open connections and tasks to end
_LOOP_DESCRIPTORS = 3  # an event loop holds its selector and a socket pair that wakes it


class Weather:
    """A client of the control port of `loadtests.stress.world`."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._lock = gevent.lock.RLock()

    def order(self, **wish: Any) -> dict[str, Any]:
        """Send one order and return the state after it.

        Raise ValueError if the order is refused, and OSError if the process has ended.
        """
        with self._lock, socket.create_connection(("127.0.0.1", self._port), timeout=_CONTROL_S) as control:
            control.sendall(json.dumps(wish).encode() + b"\n")
            with control.makefile() as lines:
                found: dict[str, Any] = json.loads(lines.readline())
        if "error" in found:
            raise ValueError(found["error"])
        return found


class Session:
    """The parts of a run that Locust does not have: servers, measures and summary."""

    def __init__(self, environment: Environment, directory: Path, options: Any) -> None:
        self.environment = environment
        self.directory = directory
        self.weather: Weather | None = None
        self._options = options
        self._world: Process | None = None
        self._done_at: dict[str, float] = {}
        self._samplings: list[gevent.Greenlet] = []
        self._actions = RequestStats(
            use_response_times_cache=False
        )  # Locust resets its own statistics when a worker has reported
        self._bytes = 0
        self._wrong = 0
        self._before: dict[int, str] = {}
        directory.mkdir(parents=True, exist_ok=True)

    # Servers

    def find_world(self) -> None:
        """Start relay, proxy and target, unless the environment names running ones. Workers ask their master."""
        runner = self.environment.runner
        if isinstance(runner, WorkerRunner):
            # A message to a worker or master that is not yet ready is lost. So the master announces the addresses when
            # it is ready, and again to each worker that asks.
            runner.register_message("world", lambda environment, msg: _set_where(msg.data))
            runner.send_message("where")
            return
        where = {"relay": os.environ.get("TUNNEL_RELAY", ""), "target": os.environ.get("STRESS_TARGET", "")}
        if not all(where.values()):
            where = self._start_world()
        _set_where(where)
        for user_class in self.environment.user_classes:
            user_class.host = where["relay"]  # Locust's page asks for a host where users have none
        if isinstance(runner, MasterRunner):
            runner.register_message("where", lambda environment, msg: runner.send_message("world", where, msg.node_id))
            runner.send_message("world", where)

    def _start_world(self) -> dict[str, str]:
        options = self._options
        command = python_command("loadtests.stress.world", "--weather", options.weather, "--seed", str(options.seed))
        if options.relay_config:
            command += ["--relay-config", options.relay_config]
        if options.trace:
            command += ["--trace", options.trace]
        self._world = Process(command, ready=says_event("ready")).start().wait_ready()
        said = json.loads(self._world.ready_line)
        self.weather = Weather(said["control"])
        return {name: said[name] for name in ("relay", "target")}

    # During the run

    def start(self) -> None:
        """Start to count every action and to measure each second."""
        if "STRESS_TARGET" not in os.environ and not isinstance(self.environment.runner, MasterRunner):
            raise RuntimeError(
                "the master has not sent the addresses of relay and target: set TUNNEL_RELAY and STRESS_TARGET"
            )
        self._before = open_descriptors()
        self.environment.events.request.add_listener(self._count)  # type: ignore[no-untyped-call]
        if not isinstance(self.environment.runner, MasterRunner):
            self._samplings.append(gevent.spawn(self._sample, "process", self._own_row))
        if self.weather is not None:
            self._samplings.append(gevent.spawn(self._sample, "world", self.weather.order))

    def _count(
        self, *, request_type: str, name: str, response_time: float, response_length: int,
        exception: Exception | None, **_: Any,
    ) -> None:  # fmt: skip
        if request_type != _ACTION:
            return
        self._bytes += response_length or 0
        self._actions.log_request(request_type, name, round(response_time), response_length or 0)
        if exception is not None:
            self._actions.log_error(request_type, name, exception)
        if isinstance(exception, AssertionError):
            self._wrong += 1

    def _sample(self, name: str, look: Callable[[], dict[str, Any]]) -> None:
        with (self.directory / f"{name}-{os.getpid()}.jsonl").open("w") as file:
            while True:
                began = time.monotonic()
                try:
                    row = {"time_s": time.time(), **look()}
                except OSError as error:
                    row = {"time_s": time.time(), "error": str(error)}
                file.write(json.dumps(row) + "\n")
                file.flush()
                gevent.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    def _own_row(self) -> dict[str, Any]:
        if self._is_due("memory", _GIVE_BACK_S):
            give_back_freed_memory()
        info = look_at(os.getpid())
        assert info is not None
        row = {
            "pid": os.getpid(),
            "rss_bytes": info.rss_bytes,
            "descriptors": info.descriptors,
            "cpu_s": info.cpu_s,
            "moved_bytes": self._bytes,
            "users": self.environment.runner.user_count if self.environment.runner else 0,
            **row_of(default_runtime().stats()),
        }
        if self._is_due("population", _POPULATION_S):
            row["objects"] = object_population()
        self._show(row)
        return row

    def _is_due(self, name: str, period_s: float) -> bool:
        now = time.monotonic()
        if now - self._done_at.get(name, 0.0) < period_s:
            return False
        self._done_at[name] = now
        return True

    def _show(self, row: dict[str, Any]) -> None:
        """Report the measures to Locust as well, so that its tables show their percentiles."""
        for name in (
            "rto_ms",
            "srtt_ms",
            "send_queue_bytes",
            "receive_queue_bytes",
            "unreceipted_batches",
            "rss_bytes",
        ):
            if name in row:
                # A request event would also be counted in the row "Aggregated", which is for the users' actions only.
                self.environment.stats.get(name, _METRIC).log(row[name], 0)

    # End of the run

    def end(self) -> None:
        """Close the tunnel after the last user, wait for leftovers to end, and write the summary."""
        for sampling in self._samplings:
            sampling.kill()
        if not isinstance(self.environment.runner, MasterRunner):
            default_runtime().close()
            deadline = time.monotonic() + _SETTLE_S
            while time.monotonic() < deadline and (self._descriptors_left() or _tasks()):
                gc.collect()
                gevent.sleep(0.2)
            self._write_summary()
        if self._world is not None:
            self._world.stop()

    def _descriptors_left(self) -> int:
        """Count the descriptors opened since the start of the run, without those of the event loop."""
        return max(0, len(open_descriptors()) - len(self._before) - _LOOP_DESCRIPTORS)

    def _write_summary(self) -> None:
        tunnel = self._actions.entries.values()
        summary = {
            "time_s": time.time(),
            "actions": sum(entry.num_requests for entry in tunnel),
            "failures": sum(entry.num_failures for entry in tunnel),
            "wrong": self._wrong,
            "moved_bytes": self._bytes,
            "descriptors_left": self._descriptors_left(),
            "tasks_left": _tasks(),
            "new_descriptors": sorted(
                what for number, what in open_descriptors().items() if number not in self._before
            ),
            "by_action": {
                entry.name: {
                    "count": entry.num_requests,
                    "failures": entry.num_failures,
                    "p50_ms": entry.get_response_time_percentile(0.5) or 0,
                    "p99_ms": entry.get_response_time_percentile(0.99) or 0,
                }
                for entry in tunnel
            },
            "errors": sorted({str(error.error)[:300] for error in self._actions.errors.values()})[:20],
        }
        unfinished = self.directory / f"_summary-{os.getpid()}"
        unfinished.write_text(json.dumps(summary) + "\n")
        unfinished.rename(
            self.directory / f"summary-{os.getpid()}.jsonl"
        )  # a rename is atomic: readers wait for the whole file


def _set_where(where: dict[str, str]) -> None:
    os.environ["TUNNEL_RELAY"] = where["relay"]
    os.environ["STRESS_TARGET"] = where["target"]
    os.environ.setdefault("TUNNEL_CARRIER", "poll")
    os.environ.setdefault("no_proxy", "*")


def _tasks() -> int:
    """Return the number of tasks on the tunnel's event loop."""

    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return loop_thread().run(count())
