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

from loadtests.harness.counted import own_objects
from loadtests.harness.processes import Process, python_command, says_event
from loadtests.stress.measures import row_of
from loadtests.stress.objects import left_over
from loadtests.stress.processinfo import look_at, open_descriptors
from loadtests.stress.repairs import RepairCounter
from loadtests.stress.world import READY_S
from tunnel import open_trace
from tunnel.process.malloc import give_back_freed_memory
from tunnel.traces.writer import TraceWriter
from tunnel_client.sockets.loop_thread import loop_thread
from tunnel_client.sockets.runtime import configure, default_runtime

__all__ = ["Session", "Weather"]

_POPULATION_S = 5.0  # pause between counts of the objects, if one takes no more than a twentieth of it
_POPULATION_PART = 1 / 20
_CONTROL_S = 60.0
_ACTION = "tunnel"  # the request type of user actions
_METRIC = "METRIC"  # the type of the rows with measures
_SETTLE_S = 15.0  # for open connections and tasks to end
# For relay and exit to forget the connections: they remember each for up to 60 s after its end (PROTOCOL 9.5).
_FORGET_S = 90.0
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
        self._objects_before: dict[str, int] = {}
        self._world_before: dict[str, Any] = {}
        self._processes = 1  # with users
        self._repairs = RepairCounter()
        self._kinds: set[str] = set()  # of users that were seen
        self._trace: TraceWriter | None = None
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
        self._world = Process(command, ready=says_event("ready")).start().wait_ready(READY_S)
        said = json.loads(self._world.ready_line)
        self.weather = Weather(said["control"])
        return {name: said[name] for name in ("relay", "target", "token")}

    # During the run

    def start(self) -> None:
        """Start to count every action and to measure each second."""
        if "STRESS_TARGET" not in os.environ and not isinstance(self.environment.runner, MasterRunner):
            raise RuntimeError(
                "the master has not sent the addresses of relay and target: set TUNNEL_RELAY and STRESS_TARGET"
            )
        if self._options.trace and not isinstance(self.environment.runner, MasterRunner):
            self._trace = open_trace(self._options.trace, name="users")
            configure(trace=self._trace)
        gc.collect()
        self._before, self._objects_before = open_descriptors(), own_objects()
        self.environment.events.request.add_listener(self._count)  # type: ignore[no-untyped-call]
        if not isinstance(self.environment.runner, MasterRunner):
            self._samplings.append(gevent.spawn(self._sample, "process", self._own_row))
        self._processes = max(1, getattr(self.environment.runner, "worker_count", 1))
        if self.weather is not None:
            self._world_before = self.weather.order(count=True)
            self._samplings.append(gevent.spawn(self._sample, "world", self._world_row))

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
                except (OSError, ValueError) as error:  # a row without figures: the gates see that they are missing
                    row = {"time_s": time.time(), "error": str(error)}
                file.write(json.dumps(row) + "\n")
                file.flush()
                gevent.sleep(max(0.0, 1.0 - (time.monotonic() - began)))

    def _own_row(self) -> dict[str, Any]:
        # A run fails if the memory in use rises too fast. What malloc keeps after a peak is not in use: of 160 MiB at
        # 20 % loss, 60 were unused.
        give_back_freed_memory()
        info = look_at(os.getpid())
        assert info is not None
        stats, runner = default_runtime().stats(), self.environment.runner
        row = {
            "pid": os.getpid(),
            "rss_bytes": info.rss_bytes,
            "descriptors": info.descriptors,
            "cpu_s": info.cpu_s,
            "moved_bytes": self._bytes,
            "users": runner.user_count if runner else 0,
            **row_of(stats),
            "resent_by_cause": self._repairs.look(stats.connections if stats else {}),
        }
        if runner:
            self._kinds.update(kind for kind, count in runner.user_classes_count.items() if count)
        if self._is_due("population", _POPULATION_S):
            row["objects"] = own_objects()
            self._pause_after("population")
        self._show(row)
        return row

    def _world_row(self) -> dict[str, Any]:
        assert self.weather is not None
        if not self._is_due("servers", _POPULATION_S):
            return self.weather.order()
        row = self.weather.order(count=False)
        self._pause_after("servers")
        return row

    def _is_due(self, name: str, period_s: float) -> bool:
        now = time.monotonic()
        if now - self._done_at.get(name, 0.0) < period_s:
            return False
        self._done_at[name] = now
        return True

    def _pause_after(self, name: str) -> None:
        """Let what took long wait for longer until it is due again."""
        now = time.monotonic()
        self._done_at[name] = max(now, now + (now - self._done_at[name]) / _POPULATION_PART - _POPULATION_S)

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
        """Close the tunnel after the last user, wait for leftovers to end, and write what is left."""
        for sampling in self._samplings:
            sampling.kill()
        self._samplings.clear()  # an ended greenlet keeps the frames in which it was killed, and what these refer to
        if not isinstance(self.environment.runner, MasterRunner):
            default_runtime().close()
            if self._trace is not None:
                self._trace.close()
            deadline = time.monotonic() + _SETTLE_S
            while time.monotonic() < deadline and (self._descriptors_left() or _tasks() or self._objects_left()):
                gc.collect()
                gevent.sleep(0.2)
            self._write_summary()
        if self._world is not None:
            self._write_end()
            self._world.stop()

    def _objects_left(self) -> bool:
        return bool(left_over(self._objects_before, own_objects()))

    def _write_end(self) -> None:
        """Write what the servers have left, as soon as they have forgotten the connections.

        Without a shape nothing is judged, so the process ends at once.
        """
        assert self.weather is not None
        deadline = time.monotonic() + (_FORGET_S if self.environment.shape_class is not None else 0.0)
        while True:
            found = self.weather.order(count=True)
            counts = found.get("objects", {})
            before = self._world_before["objects"]
            left = [left_over(before.get(name, {}), count, self._processes) for name, count in counts.items()]
            is_empty = not any(left) and not found.get("relay", {}).get("switch", {}).get("routes")
            if is_empty or time.monotonic() >= deadline:
                break
            gevent.sleep(1.0)
        self._write(
            "end",
            {
                "time_s": time.time(),
                "objects_before": self._world_before["objects"],
                "objects_after": counts,
                "processes_before": self._world_before["processes"],
                "processes_after": found["processes"],
                "relay": found.get("relay", {}),
            },
        )

    def _descriptors_left(self) -> int:
        """Count the descriptors opened since the start of the run, without those of the event loop."""
        return max(0, len(open_descriptors()) - len(self._before) - _LOOP_DESCRIPTORS)

    def _write_summary(self) -> None:
        tunnel = self._actions.entries.values()
        classes: list[Any] = self.environment.user_classes
        summary = {
            "time_s": time.time(),
            "pid": os.getpid(),
            "kinds": {kind.__name__: kind.actions for kind in classes if kind.__name__ in self._kinds},
            "objects_before": self._objects_before,
            "objects_after": own_objects(),
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
        self._write("summary", summary)

    def _write(self, name: str, row: dict[str, Any]) -> None:
        unfinished = self.directory / f"_{name}-{os.getpid()}"
        unfinished.write_text(json.dumps(row) + "\n")
        # A rename is atomic: readers wait for the whole file.
        unfinished.rename(self.directory / f"{name}-{os.getpid()}.jsonl")


def _set_where(where: dict[str, str]) -> None:
    os.environ["TUNNEL_RELAY"] = where["relay"]
    os.environ["STRESS_TARGET"] = where["target"]
    if where.get("token"):
        os.environ["TUNNEL_TOKEN"] = where["token"]
    os.environ.setdefault("TUNNEL_CARRIER", "poll")
    os.environ.setdefault("no_proxy", "*")


def _tasks() -> int:
    """Return the number of tasks on the tunnel's event loop."""

    async def count() -> int:
        return len(asyncio.all_tasks()) - 1

    return loop_thread().run(count())
