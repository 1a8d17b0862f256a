"""Measures one row with one carrier, in phases: start, transfers, the idle connection, the kill, the doctor."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator

from loadtests.harness.processes import NotReadyError
from tests.field.flows import MIB
from tests.field.results import Bare, Doctor, Result
from tests.field.rows import Row
from tests.field.stage import Stage, StageError
from tests.field.transfers import BrokenError, Echoes, download, echo_p50_ms, pour, upload

__all__ = ["Run", "measure_bare", "read_report"]

_ECHOES = 100
_ECHOES_S = 20.0
_WARM_BYTES = MIB
_IDLE_ECHO_S = 30.0
_KILL_S = 120.0
_KILL_LOAD_S = 3.0  # at the measured rate, the bytes of the part "kill" would take this long
_KILL_BYTES = (256 << 10, 48 * MIB)  # at least and at most


class Run:
    """One measurement. The phases are called in the order of the methods; each records what broke, and never raises
    for it."""

    def __init__(self, row: Row, carrier: str, target: int, *, mib: int | None = None, is_examined: bool) -> None:
        self.row = row
        self.result = Result(row.name, carrier)
        self._size = min(row.mib, mib or row.mib) * MIB
        self._stage = Stage(row, carrier, target)
        self._is_examined = is_examined
        self._echoes: Echoes | None = None
        self._quiet_since_s = 0.0
        self._has_started = False  # all programs run, except perhaps the client

    async def start(self) -> None:
        """Start the processes."""
        try:
            await asyncio.to_thread(self._stage.start)
            self._has_started = True
        except StageError as error:
            self._has_started = True
            self.result.broken["attach"] = str(error)
            self.result.code = error.code
        except NotReadyError as error:
            self.result.broken["attach"] = f"a program did not start: {str(error).splitlines()[-1]}"

    @contextlib.asynccontextmanager
    async def _part(self, *parts: str) -> AsyncIterator[None]:
        """Record for each of these parts why the transfer in the block broke."""
        try:
            yield
        except (BrokenError, NotReadyError, OSError) as error:
            for part in parts:
                self.result.broken.setdefault(part, str(error))

    async def transfer(self, bare: Bare) -> None:
        """Move bytes up, then down, then echoes; the connection of the echoes stays open and idle."""
        result, port, seconds = self.result, self._stage.port, self.row.seconds
        result.bare = bare
        if "attach" in result.broken:
            return
        async with self._part("up", "down"):
            warm = min(_WARM_BYTES, self._size)
            await upload(port, warm, seconds)
            await download(port, warm, seconds)
        before = self._stage.used_carrier()
        if "up" not in result.broken:
            async with self._part("up"):
                result.up_bps = await upload(port, self._size, seconds)
            async with self._part("down"):
                result.down_bps = await download(port, self._size, seconds)
        async with self._part("echo"):
            self._echoes = await Echoes(port).__aenter__()
            result.echo_ms = await echo_p50_ms(self._echoes, _ECHOES, _ECHOES_S)
        self._quiet_since_s = time.monotonic()
        if self._has_given_up():
            return
        after = self._stage.used_carrier()
        result.used = after if before == after else f"{before}, then {after}"

    def _has_given_up(self) -> bool:
        """Return whether the client has ended. If so, record only its end, in place of all broken parts."""
        try:
            self._stage.check_forward()
        except StageError as error:
            self.result.broken, self.result.code = {"attach": str(error)}, error.code
            return True
        return False

    async def stay_idle(self, seconds: float) -> None:
        """Wait until the connection has been idle for that long; an echo must still come back on it."""
        if self._echoes is None:
            return
        try:
            if "echo" not in self.result.broken:
                await asyncio.sleep(max(0.0, self._quiet_since_s + seconds - time.monotonic()))
                async with self._part("idle"):
                    self.result.idle_ms = await self._echoes.once(_IDLE_ECHO_S)
        finally:
            await self._echoes.__aexit__()

    async def kill(self) -> None:
        """Kill the relay while bytes move both ways; all of them must arrive."""
        rates = [rate for rate in (self.result.up_bps, self.result.down_bps) if rate is not None]
        if not rates or "attach" in self.result.broken:
            return
        # Bytes move both ways at once and share the path, so each way carries half.
        size = int(min(max(min(rates) * _KILL_LOAD_S / 2, _KILL_BYTES[0]), _KILL_BYTES[1], self._size))
        async with self._part("kill"):
            self.result.kill_s = await pour(self._stage.port, size, self._stage.replace_relay, _KILL_S)

    async def examine(self) -> None:
        """End the client, and let the doctor judge the path."""
        if not self._is_examined or not self._has_started:  # without all programs, there is no path to judge
            return
        await self._stage.stop_forward()
        self.result.doctor = read_report(*await self._stage.examine())

    async def close(self) -> None:
        """End every process."""
        await asyncio.to_thread(self._stage.close)


def read_report(code: int, output: str) -> Doctor:
    """Read the doctor's report; a doctor that printed none has crashed."""
    lines = output.strip().splitlines() or ["it printed nothing"]
    try:
        report = json.loads(lines[-1])
        findings = [(found["verdict"], found["step"]) for found in report["findings"]]
        summary = str(report["summary"])
    except (ValueError, KeyError, TypeError):
        return Doctor(code or -1, lines[-1])
    notes = [step for verdict, step in findings if verdict == "note"]
    problems = [step for verdict, step in findings if verdict == "problem"]
    return Doctor(code, summary, notes, problems)


async def measure_bare(port: int, mib: int) -> Bare:
    """Measure the transfers of `Run.transfer` through a plain TCP forwarder, without the tunnel, for comparison."""
    up = await upload(port, mib * MIB, _KILL_S)
    down = await download(port, mib * MIB, _KILL_S)
    async with Echoes(port) as echoes:
        return Bare(up, down, await echo_p50_ms(echoes, _ECHOES, _ECHOES_S))
