"""redis-benchmark directly and through `tunnel forward`: `python -m loadtests.experiments.redis_bench`.

The path is redis-benchmark, forward, nginx with its default settings, relay, exit in its own process, Redis. All of it
runs on this machine.
"""

import csv
import io
import shutil
import subprocess
import sys
from contextlib import ExitStack

import msgspec

from loadtests.harness.experiment import command
from loadtests.harness.nginx import Nginx
from loadtests.harness.ports import hold_port
from loadtests.harness.processes import NotReadyError, Process, python_command, says_event
from loadtests.harness.relays import RelayProcess, exit_process

__all__ = ["Figures", "Report", "main", "measure", "parse_figures", "summary"]

LOOPBACK = "127.0.0.1"
LIMIT_S = 1200.0  # for one run of redis-benchmark with all of its tests
_HEADINGS = f"{'requests/s':>10} {'p50 ms':>8} {'p99 ms':>8}"
_PROGRAMS = ("redis-server", "redis-benchmark", "nginx")


class Figures(msgspec.Struct, frozen=True):
    """The figures of one test of redis-benchmark."""

    requests_per_s: float
    p50_ms: float
    p99_ms: float


class Report(msgspec.Struct):
    """The results of redis-benchmark, by the names of its tests."""

    requests: int
    clients: int
    tests: str
    carrier: str
    direct: dict[str, Figures] = {}
    tunnel: dict[str, Figures] = {}
    failure: str = ""


def measure(report: Report) -> None:
    """Fill in the report, first directly, then through the tunnel. Raise NotReadyError if a process did not start."""
    with ExitStack() as stack:
        redis_port = stack.enter_context(hold_port())
        server = ["redis-server", "--bind", LOOPBACK, "--port", str(redis_port), "--save", ""]
        stack.enter_context(Process(server, ready=lambda line: "Ready to accept connections" in line))
        relay = stack.enter_context(RelayProcess())
        stack.enter_context(exit_process(relay))
        proxy = stack.enter_context(Nginx(relay.url))
        port = stack.enter_context(hold_port())
        options = ("--relay", proxy.url, "--proxy", "none", "--carrier", report.carrier)
        forward = python_command("tunnel_client", "forward", *options, f"{port}:{LOOPBACK}:{redis_port}")
        token = {"TUNNEL_TOKEN": relay.tokens["client"]}
        stack.enter_context(Process(forward, ready=says_event("listening"), environment=token))
        report.direct = _run(redis_port, report)
        report.tunnel = _run(port, report)
    report.failure = report.failure or _proves_nothing(report)


def _proves_nothing(report: Report) -> str:
    """Return why two runs without an error prove nothing, or an empty string if they do prove something."""
    if not report.direct:
        return "redis-benchmark ran no test: name some that it knows with -t"
    if missing := [name for name in report.direct if name not in report.tunnel]:
        return f"redis-benchmark did not run these tests through the tunnel: {', '.join(missing)}"
    slow = [name for name, figures in report.tunnel.items() if not figures.requests_per_s > 0]
    return f"no request was answered through the tunnel: {', '.join(slow)}" if slow else ""


def _run(port: int, report: Report) -> dict[str, Figures]:
    if report.failure:
        return {}
    command = ["redis-benchmark", "-h", LOOPBACK, "-p", str(port)]
    command += ["-n", str(report.requests), "-c", str(report.clients)]
    command += ["--csv", *(("-t", report.tests) if report.tests else ())]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        report.failure = f"redis-benchmark did not end within {LIMIT_S:.0f} s"
        return {}
    if done.returncode:
        report.failure = (done.stderr or done.stdout).strip() or f"redis-benchmark ended with {done.returncode}"
    return parse_figures(done.stdout)


def parse_figures(text: str) -> dict[str, Figures]:
    """Parse the output of `redis-benchmark --csv`, whose first line names the columns."""
    rows = csv.DictReader(io.StringIO(text))
    return {
        row["test"]: Figures(float(row["rps"]), float(row["p50_latency_ms"]), float(row["p99_latency_ms"]))
        for row in rows
    }


def summary(report: Report) -> str:
    """Return the results as text for people, direct run and tunnel side by side."""
    width = max(map(len, report.direct), default=4)
    lines = [
        f"redis-benchmark -n {report.requests} -c {report.clients}: direct | tunnel forward, carrier {report.carrier}",
        f"{'':{width}}  {_HEADINGS}  |  {_HEADINGS}",
    ]
    for name, figures in report.direct.items():
        beside = f"  |  {_columns(report.tunnel[name])}" if name in report.tunnel else ""
        lines.append(f"{name:{width}}  {_columns(figures)}{beside}")
    count = len(report.tunnel)
    lines.append(f"FAILED: {report.failure}" if report.failure else f"OK: {count} tests without an error")
    return "\n".join(lines)


def _columns(figures: Figures) -> str:
    return f"{figures.requests_per_s:>10.0f} {figures.p50_ms:>8.2f} {figures.p99_ms:>8.2f}"


def main(argv: list[str] | None = None) -> int:
    """Return 0 if redis-benchmark ended without an error both times, 1 if not, whatever the figures are."""
    parser = command("experiments.redis_bench", __doc__, "-n 20000 -c 20 -t ping,set,get")
    parser.add_argument("-n", type=int, default=20000, metavar="N", help="requests per test (default: 20000)")
    parser.add_argument("-c", type=int, default=20, metavar="N", help="connections (default: 20)")
    parser.add_argument(
        "-t", default="", metavar="TESTS", help="tests, as for redis-benchmark -t (default: all, which takes long)"
    )
    parser.add_argument(
        "--carrier", choices=("auto", "poll", "link"), default="poll", help="carrier of the forward (default: poll)"
    )
    options = parser.parse_args(argv)
    missing = [name for name in _PROGRAMS if shutil.which(name) is None]
    if missing:
        parser.error(f"not installed: {', '.join(missing)}; run make system-deps")
    report = Report(options.n, options.c, options.t, options.carrier)
    try:
        measure(report)
    except NotReadyError as error:
        print(f"the run could not start: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(msgspec.json.encode(report).decode() if options.json else summary(report))
    return 1 if report.failure else 0


if __name__ == "__main__":
    sys.exit(main())
