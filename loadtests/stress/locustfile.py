"""Users on tunnel sockets through a relay that loses packets: `locust -f loadtests/stress/locustfile.py`.

Locust's own -u, -r and -t, or its page, decide the number of users, unless `--shape` names a shape. Relay, fault proxy
and target are started here, unless TUNNEL_RELAY and STRESS_TARGET name running ones. docs/LOADTESTS.md explains
options, users and measures. `make stress` is a short run with gates and a report.
"""

import logging
import time
from argparse import Namespace
from pathlib import Path
from typing import Any

from locust import LoadTestShape, events, runners
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment

from loadtests.stress.session import Session
from loadtests.stress.shapes import SHAPES, Plan, make_plan
from loadtests.stress.users import (
    BulkUser,
    ChurnUser,
    EchoUser,
    HalfCloserUser,
    IdleCrowd,
    RequestUser,
    SlowReaderUser,
    WriterUser,
)

__all__ = [
    "BulkUser",
    "ChurnUser",
    "EchoUser",
    "HalfCloserUser",
    "IdleCrowd",
    "RequestUser",
    "SlowReaderUser",
    "StressShape",
    "WriterUser",
]

NO_SHAPE = "none"
_LOCUST_OPTIONS = {"-u": "num_users", "-r": "spawn_rate", "-t": "run_time"}
# After this number of missed heartbeats, one a second, Locust's first process gives a process with users up. One that
# waits for a busy machine is not dead, and by itself Locust allows three.
runners.HEARTBEAT_LIVENESS = 60
_log = logging.getLogger(__name__)
_session: Session | None = None


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: LocustArgumentParser) -> None:
    """Add the options of the stress suite to those of Locust."""
    parser.add_argument(
        "--shape",
        choices=[NO_SHAPE, *SHAPES],
        default=NO_SHAPE,
        include_in_web_ui=False,  # the page cannot change it: Locust has asked for the shape before
        help="how users and loss change in time (default: none, so that -u, -r and -t decide, at the first loss)",
    )
    group = parser.add_argument_group("tunnel stress")
    group.add_argument(
        "--crowd", type=int, default=50, help="number of users; the shape decides when they come (default: 50)"
    )
    group.add_argument("--seconds", type=float, default=120.0, help="duration of a shape (default: 120)")
    group.add_argument(
        "--losses", default="0,0.01,0.05,0.1,0.2", help="shares of packets that the relay drops, in turn"
    )
    group.add_argument("--weather", default="--drop-response 0.01", help="options of the fault proxy")
    group.add_argument("--seed", type=int, default=1, help="seed of the faults (default: 1)")
    group.add_argument("--relay-config", default="", metavar="FILE", help="configuration of the relay, for its limits")
    group.add_argument("--measures", default="build/stress", metavar="DIR", help="directory for the measures")
    group.add_argument("--trace", default="", metavar="DIR", help="directory for the traces of servers and users")


@events.init.add_listener  # type: ignore[untyped-decorator]
def on_init(environment: Environment, **_: Any) -> None:
    """Find or start relay, proxy and target before the first user."""
    global _session
    options = environment.parsed_options
    if options is None:
        return
    _session = Session(environment, Path(options.measures), options)
    _session.find_world()
    if options.shape == NO_SHAPE:  # Locust uses a shape's class whenever this file has one
        environment.shape_class = None
    else:
        StressShape.use_common_options = False
        ignored = [option for option, name in _LOCUST_OPTIONS.items() if getattr(options, name, None)]
        if ignored:
            _log.warning("the shape %s decides: %s has no effect", options.shape, ", ".join(ignored))


@events.test_start.add_listener  # type: ignore[untyped-decorator]
def on_start(**_: Any) -> None:
    """Start to measure. Without a shape, the first loss is in force for the whole run."""
    if _session is not None:
        _session.start()
        if _session.environment.shape_class is None and _session.weather is not None:
            options = _session.environment.parsed_options
            assert options is not None
            _session.weather.order(loss=next(iter(_losses(options)), "0"))


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def on_quitting(environment: Environment, **_: Any) -> None:
    """End the session after the last user. Reset the exit code, since the gates judge failures, not Locust."""
    if _session is not None:
        _session.end()
    environment.process_exit_code = 0


class StressShape(LoadTestShape):
    """Follows the plan: sets the number of users and the loss."""

    # Before `on_init` knows that a shape is chosen, this must be true. Otherwise Locust would warn that its own -u,
    # -r and -t have no effect, even without a shape.
    use_common_options = True

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._plan: Plan | None = None
        self._loss = ""
        self._began = time.monotonic()

    def reset_time(self) -> None:
        """Begin the plan again: Locust's page can start several runs."""
        super().reset_time()  # type: ignore[no-untyped-call]
        self._plan = None
        self._loss = ""

    def tick(self) -> tuple[int, float] | None:
        """Return the number of users wanted now and how many to start per second; None at the end. Set the loss."""
        if self._plan is None:
            assert _session is not None
            options = _session.environment.parsed_options
            assert options is not None
            self._plan = make_plan(options.shape, options.crowd, options.seconds, _losses(options))
            self._began = time.monotonic()
        stage = self._plan.at(time.monotonic() - self._began)
        if stage is None:
            return None
        if stage.loss != self._loss and _session is not None and _session.weather is not None:
            _session.weather.order(loss=stage.loss)
            self._loss = stage.loss
        return stage.users, stage.spawn_rate


def _losses(options: Namespace) -> list[str]:
    return [loss for loss in options.losses.split(",") if loss]
