"""What idle attachments cost a relay: `python -m loadtests.bench.capacity --counts 10,100,1000`.

One relay serves so many idle attachments of one user, first over links and then with single requests (poll), where the
relay holds a request of each. When all are attached and have settled, the processor time and the resident memory of the
relay are read. The memory of the first few attachments is not counted: it includes what every relay needs. The clients
are real ones, in processes of a thousand attachments each. Counts beyond what this machine's limit of open files allows
are refused: the command raises its own limit as far as it may.
"""

import asyncio
import resource
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import msgspec

from loadtests.bench.road_paths import write_tokens
from loadtests.harness.experiment import command, perform
from loadtests.harness.names import AddNames
from loadtests.harness.processes import Process, cpu_seconds, python_command, relay_command, resident_bytes, says_event

__all__ = ["CARRIERS", "Capacity", "main", "measure", "table"]

CARRIERS = ("link", "poll")
_FIRST = 10  # attachments before the memory is read for the first time
_PER_PROCESS = 1000  # attachments of one client process
_MOST_EACH = 4  # connections of one attachment, while it attaches
_READY_S = 1800.0
_SPARE_FILES = 100
_CONFIG = """\
listen = ["127.0.0.1:0"]
exit = "none"
tokens = "relay.tokens.toml"
[limits]
connections_max = {most}
connections_per_user_max = {most}
connections_per_address_max = {most}
attachments_max = {most}
attachments_per_user_max = {most}
mailbox_bytes_max = 65536
user_bytes_max = 1073741824
process_bytes_max = 2147483648
[users.client]
connect = ["127.0.0.1:*"]
"""


class Capacity(msgspec.Struct):
    """What so many idle attachments cost the relay: bytes of resident memory each, and a share of one processor."""

    carrier: str
    attachments: int
    bytes_each: float
    core_percent: float


class _Clients:
    """Processes with idle attachments of one carrier, until the `async with` block ends."""

    def __init__(self, url: str, token: str, carrier: str) -> None:
        self._command = python_command("loadtests.bench.capacity_clients", url, carrier)
        self._token = token
        self._processes: list[Process] = []
        self.count = 0

    async def __aenter__(self) -> "_Clients":
        return self

    async def __aexit__(self, *exception: object) -> None:
        for process in self._processes:
            await asyncio.to_thread(process.kill)

    async def grow(self, count: int) -> None:
        """Return when there are `count` attachments."""
        while self.count < count:
            more = min(count - self.count, _PER_PROCESS)
            command = [*self._command, str(more)]
            process = Process(command, ready=lambda line: line.startswith("ready"), environment=self._environment)
            self._processes.append(process.start())
            await process.ready(_READY_S)
            self.count += more

    @property
    def _environment(self) -> dict[str, str]:
        return {"TUNNEL_TOKEN": self._token}


async def measure(counts: list[int], carriers: list[str], *, settle_s: float, seconds: float) -> list[Capacity]:
    """Return the figures of each carrier and count. Counts rise."""
    _allow_files(counts[-1])
    found = []
    for carrier in carriers:
        with TemporaryDirectory() as directory:
            folder = Path(directory)
            token = write_tokens(folder / "relay.tokens.toml", "client")["client"]
            config = _CONFIG.format(most=_MOST_EACH * counts[-1] + _SPARE_FILES)
            (folder / "relay.toml").write_text(config, encoding="utf-8")
            relay = Process(relay_command("serve", "-c", str(folder / "relay.toml")), ready=says_event("listening"))
            async with relay:
                url = msgspec.json.decode(relay.ready_line)["url"]
                async with _Clients(url, token, carrier) as clients:
                    await clients.grow(min(_FIRST, counts[0]))
                    await asyncio.sleep(settle_s)
                    first, first_bytes = clients.count, resident_bytes(relay.pid)
                    for count in counts:
                        await clients.grow(count)
                        await asyncio.sleep(settle_s)
                        before_s = cpu_seconds(relay.pid)
                        await asyncio.sleep(seconds)
                        spent_s = cpu_seconds(relay.pid) - before_s
                        more = count - first
                        each = (resident_bytes(relay.pid) - first_bytes) / more if more else 0.0
                        found.append(Capacity(carrier, count, each, spent_s / seconds * 100))
    return found


def _allow_files(attachments: int) -> None:
    """Raise the limit of open files as far as `attachments` need. Raise ValueError if that is not allowed."""
    wanted = 2 * attachments + _SPARE_FILES  # a client of poll may need a second connection while it attaches
    files, files_max = resource.getrlimit(resource.RLIMIT_NOFILE)
    if resource.RLIM_INFINITY not in (files, files_max) and files_max < wanted:
        raise ValueError(
            f"{attachments} attachments need {wanted} open files, and this machine allows a process {files_max}: "
            "measure fewer, or raise the limit (ulimit -Hn)"
        )
    if files != resource.RLIM_INFINITY and files < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, files_max))


def table(found: list[Capacity]) -> str:
    """Return the figures as text for people."""
    lines = [f"{'carrier':<10}{'attachments':>12}{'KiB each':>10}{'% of a core':>13}"]
    for one in found:
        each = f"{one.bytes_each / 1024:.1f}" if one.bytes_each else "-"
        lines.append(f"{one.carrier:<10}{one.attachments:>12,}{each:>10}{one.core_percent:>13.1f}")
    return "\n".join(lines)


def _counts(text: str) -> list[int]:
    found = [int(part) for part in text.split(",")]
    if not found or found != sorted(set(found)) or found[0] < 1:
        raise ValueError(text)
    return found


def main(arguments: list[str] | None = None) -> int:
    """Print the figures. Return 0, or 3 without a result."""
    parser = command("bench.capacity", __doc__, "--counts 10,100 --carriers link --settle 5 --seconds 10")
    parser.add_argument("--counts", type=_counts, default="10,100,1000", help="rising (default: 10,100,1000)")
    names = ",".join(CARRIERS)
    parser.add_argument("--carriers", action=AddNames, default="", metavar="NAMES", help=f"of {names}")
    parser.add_argument(
        "--settle", type=float, default=70.0, metavar="S", help="wait until holds are long (default: 70)"
    )
    parser.add_argument("--seconds", type=float, default=60.0, metavar="S", help="processor time is read for so long")
    options = parser.parse_args(arguments)
    carriers = options.carriers.split(",") if options.carriers else list(CARRIERS)
    if unknown := set(carriers) - set(CARRIERS):
        parser.error(f"there is no carrier named {', '.join(sorted(unknown))} here: choose from {names}")
    try:
        _allow_files(options.counts[-1])
    except ValueError as error:
        parser.error(str(error))
    return perform(
        measure(options.counts, carriers, settle_s=options.settle, seconds=options.seconds),
        verdict=lambda found: 0,
        text=table,
        as_json=options.json,
    )


if __name__ == "__main__":
    sys.exit(main())
