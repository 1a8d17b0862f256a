"""The transfer of the demo: an upload, then a download, with the relay killed in the middle of each."""

import asyncio
import time
from collections.abc import Callable
from random import Random

from loadtests.demo.report import Kill, Report, Way
from loadtests.demo.stage import Stage
from loadtests.harness.transfer import Flow

__all__ = ["Act", "Play"]

LIMIT_S = 300.0  # the demo takes 20 s on two idle cores
_LEAD = 0.12  # share that may be written beyond the point of the kill: 0.55 + 0.12 at most, below the 0.7 of the report


class Act:
    """One direction of the transfer, and the point at which the relay is killed."""

    def __init__(self, name: str, size_bytes: int, random: Random) -> None:
        self.name = name
        self.flow = Flow(size_bytes, random.getrandbits(32))
        # The relay is killed when this share has arrived. By the time of the kill, a little more can have arrived; the
        # report requires 30 to 70 %.
        self.kill_at = random.uniform(0.4, 0.55)

    def way(self) -> Way:
        """Return the figures of this direction."""
        flow = self.flow
        written, received = flow.digests
        seconds = max(0.0, flow.ended_s - flow.began_s)
        return Way(self.name, flow.size_bytes, flow.received_bytes, seconds, written, received)


class Play:
    """The whole transfer. perform() runs it, once; while it runs, `acts` and `stage` show its progress."""

    def __init__(self, size_bytes: int, seed: int, said: Callable[[str], None]) -> None:
        random = Random(seed)
        self.acts = [Act(name, size_bytes, random) for name in ("upload", "download")]
        self.report = Report()
        self.stage: Stage | None = None
        self._seed = seed
        self._said = said
        self._target: asyncio.Task[None] | None = None

    async def perform(self) -> Report:
        """Start all processes, move the bytes, and stop everything. Errors of the transfer are noted in the report."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        async with server:
            self._said("starting a relay, an exit, a fault proxy and a forward")
            port: int = server.sockets[0].getsockname()[1]
            # Children are killed when the thread that started them ends. A thread of the executor lives as long as the
            # event loop.
            with await asyncio.to_thread(Stage(port, self._seed).__enter__) as stage:
                self.stage = stage
                began = time.monotonic()
                try:
                    async with asyncio.timeout(LIMIT_S):
                        await self._move(stage)
                except TimeoutError:
                    self.report.failure = f"the transfer did not end within {LIMIT_S:.0f} s"
                except OSError as error:
                    self.report.failure = f"the connection broke: {error}"
                self.report.seconds = time.monotonic() - began
                await asyncio.to_thread(stage.finish)
                self._account(stage)
        self.report.judge()
        return self.report

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve as the target: read the upload to its end, then send the download."""
        up, down = (act.flow for act in self.acts)
        try:
            await up.read_from(reader)
            await down.write_to(writer)
        except ConnectionError:
            pass  # the application gets the error, too
        finally:
            writer.close()

    async def _move(self, stage: Stage) -> None:
        up, down = self.acts
        killing = asyncio.get_running_loop().create_task(self._kill(stage))
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", stage.local_port)
            self._said("upload")
            await up.flow.write_to(writer)
            await down.flow.read_from(reader)
            writer.close()
            if down.flow.received_bytes == down.flow.size_bytes:
                await killing
        finally:
            killing.cancel()

    async def _kill(self, stage: Stage) -> None:
        for act in self.acts:
            flow = act.flow
            # Even if this task sees late that the goal is reached, some bytes must be left to be in flight at the kill.
            flow.hold(int(flow.size_bytes * (act.kill_at + _LEAD)))
            await flow.reach(int(flow.size_bytes * act.kill_at))
            in_flight_bytes = await flow.put_in_flight()
            share = flow.received_bytes / flow.size_bytes
            self._said(
                f"kill -9 of the relay at {share:.0%} of the {act.name}, {in_flight_bytes // 1024} KiB in flight"
            )
            killed = time.monotonic()
            await stage.relay.replace()
            self._said(f"a new relay listens after {stage.relay.startup_s:.2f} s; it has no state of the stream")
            recovery_s = await flow.pass_on() - killed
            flow.hold(flow.size_bytes)
            self._said(f"the {act.name} goes on after {recovery_s:.2f} s")
            self.report.kills.append(Kill(act.name, share, in_flight_bytes, stage.relay.startup_s, recovery_s))

    def _account(self, stage: Stage) -> None:
        traffic = stage.traffic()
        report = self.report
        report.ways = [act.way() for act in self.acts]
        report.exchanges, report.faults = stage.exchanges, stage.faults
        report.repeats, report.resent = traffic.exchanges_failed, traffic.resent
        report.packets_sent, report.round_trip_us, report.rto_us = (
            traffic.packets_sent,
            traffic.round_trip_us,
            traffic.rto_us,
        )
