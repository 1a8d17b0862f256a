"""A relay that loses single packets on purpose: `python -m loadtests.harness.lossyrelay`.

The loss can be changed while it runs: send a line with the new loss to the control port. The answer is a line of JSON
with the share of packets lost in the long run, and the numbers of packets passed and lost so far. An empty line changes
nothing.
"""

import argparse
import asyncio
import json
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

import structlog

from loadtests.harness.losses import LossyFilter, parse_model
from tunnel.ground.exit_codes import USAGE
from tunnel.process.command_line import configure_log
from tunnel.process.event_loops import new_event_loop
from tunnel.traces.jsonl import JsonLinesWriter
from tunnel_servlet.command.files import Overrides, load_config
from tunnel_servlet.config import ConfigError, RelayConfig
from tunnel_servlet.web.running import RunningRelay

__all__ = ["Control", "ask_loss", "main"]

_log = structlog.get_logger("lossyrelay")
_TRACE_FILE = "lossyrelay.jsonl"


class Control:
    """The control port: changes the loss on request."""

    def __init__(self, lossy: LossyFilter) -> None:
        self._lossy = lossy

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer each line of a control connection until it ends."""
        try:
            while line := (await reader.readline()).decode("ascii", "replace"):
                writer.write(self.answer(line.strip()).encode() + b"\n")
                await writer.drain()
        except (ConnectionError, ValueError) as error:
            _log.warning("control lost", error=str(error))
        finally:
            writer.close()

    def answer(self, text: str) -> str:
        """Set the loss if `text` is not empty; return the answer as JSON, with `error` if `text` is not a loss."""
        found: dict[str, object] = {}
        if text:
            try:
                self._lossy.model = parse_model(text)
                _log.info("loss", model=text)
            except ValueError as error:
                found["error"] = str(error)
        return json.dumps(
            {**found, "share": self._lossy.model.share, "passed": self._lossy.passed, "lost": self._lossy.lost}
        )


async def ask_loss(port: int, loss: str = "") -> dict[str, float]:
    """Send a loss to a control port, and return its answer. An empty `loss` only asks for the counters."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(f"{loss}\n".encode())
        found: dict[str, float] = json.loads(await reader.readline())
        return found
    finally:
        writer.close()
        await writer.wait_closed()


async def _run(config: RelayConfig, lossy: LossyFilter, control_port: int) -> None:
    loop = asyncio.get_running_loop()
    control = Control(lossy)
    async with (
        await asyncio.start_server(control.serve, "127.0.0.1", control_port) as server,
        RunningRelay(config, packet_filter=lossy) as running,
    ):
        loop.add_signal_handler(signal.SIGTERM, running.terminate)
        loop.add_signal_handler(signal.SIGINT, running.stopped.set)
        _log.info("lossy", control=server.sockets[0].getsockname()[1], share=lossy.model.share)
        await running.stopped.wait()


def main(argv: Sequence[str] | None = None) -> int:
    """Run the relay until SIGTERM or SIGINT; return the exit code."""
    arguments = _parser().parse_args(argv)
    configure_log("info")
    trace = None
    if arguments.trace:
        Path(arguments.trace).mkdir(parents=True, exist_ok=True)
        trace = JsonLinesWriter(Path(arguments.trace) / _TRACE_FILE)
    overrides = Overrides(
        listen=tuple(arguments.listen),
        allow=tuple(arguments.allow),
        is_open=arguments.open,
        exit=arguments.exit,
        admin=arguments.admin,
        trace=arguments.trace,
    )
    try:
        config = load_config(arguments.config, overrides)
        lossy = LossyFilter(parse_model(arguments.loss), arguments.seed, trace)
        with asyncio.Runner(loop_factory=new_event_loop) as runner:
            runner.run(_run(config, lossy, arguments.control))
    except (ConfigError, ValueError) as error:
        print(f"lossyrelay: {error}", file=sys.stderr)
        return USAGE
    finally:
        if trace is not None:
            trace.close()
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.harness.lossyrelay",
        description="A relay that loses single packets inside accepted bodies.",
        epilog="example: python -m loadtests.harness.lossyrelay --open --listen 127.0.0.1:8080 --allow '127.0.0.1:*' "
        "--loss 0.05",
    )
    parser.add_argument("-c", "--config", default="", metavar="FILE", help="the relay's configuration")
    parser.add_argument("--open", action="store_true", help="ask for no token")
    parser.add_argument("--listen", action="append", default=[], metavar="H:P")
    parser.add_argument(
        "--allow", action="append", default=[], metavar="H:P", help="a target that every user may reach"
    )
    parser.add_argument("--exit", choices=("inline", "none"), default="", help="default: as the configuration says")
    parser.add_argument("--admin", default="", metavar="H:P", help="address of the admin listener")
    parser.add_argument("--loss", default="0", help="a probability, or gilbert:P:R[:GOOD:BAD] (default: 0)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--control",
        type=int,
        default=0,
        metavar="PORT",
        help="port on loopback that takes new losses, one per line (default: a free port)",
    )
    parser.add_argument(
        "--trace", default="", metavar="DIR", help="write traces to this directory, with a record for each lost packet"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
