"""A prober that sends nothing: rules of intermediaries judge its requests, in the time of the running loop."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.client.doctor.limiters import RESET, SILENCE, Judged, Rule, Seen
from tests.client.doctor.prober import LIMITS, answered, cut, foreign
from tunnel.carriers.dialing.dialing import Dialing
from tunnel.carriers.probes.probe import ProbeError, Reply
from tunnel.wire import TEXT_FORMATS, Attached, BodyFormat

__all__ = ["OCTETS", "RuledProber"]

OCTETS = BodyFormat.PLAIN.value
_FORMATS = [each.value for each in BodyFormat]
_TRIP_S = 0.002
_EMPTY_BYTES = 40
_SMALL_BYTES = 100
_NOISE_BITS, _SMALL_BITS, _BASE64_BITS, _TEXT_BITS = 7.9, 6.5, 6.0, 4.2  # small bodies are mostly headers
_NOISE_FROM_BYTES = 1000


class _Connections:
    """Connections of one session. `idle` has those that no request uses, by the time at which they were opened."""

    def __init__(self) -> None:
        self.idle: list[float] = []
        self.opened = 0


class RuledProber:
    """Stands for `tunnel.carriers.probes.probe.Prober`. Each connection ends at the age of `life_s`.

    `has_link`: links and websockets pass. Answers of more than `answers_max` bytes vanish. `refused` counts the
    requests that a rule refused.
    """

    def __init__(
        self, *rules: Rule, has_link: bool = False, life_s: float = float("inf"), answers_max: int = 1 << 30
    ) -> None:
        self.dialing = Dialing("http://relay.invalid", token="tnl_x", proxy=None, insecure_http=True)
        self.attached: Attached | None = None
        self.answer_bytes = self.ask_bytes_max = 64 << 10
        self.is_fresh = False
        self.has_left = False
        self.format = BodyFormat.PLAIN
        self.moved_bytes = 0
        self.asked: list[Seen] = []
        self.refused = 0
        self._rules = rules
        self._has_link = has_link
        self._life_s = life_s
        self._answers_max = answers_max
        self._pool = _Connections()
        self._waiting_bytes = 0
        self._serial = 0

    async def __aenter__(self) -> RuledProber:
        return self

    async def __aexit__(self, *exception: object) -> None:
        """Do nothing: there is nothing to close."""

    async def attach(self) -> Reply:
        reply = await self._send(OCTETS, _SMALL_BYTES, self._pool) or answered("attached")
        if reply.kind == "attached":
            self.attached, reply.epoch = LIMITS, LIMITS.epoch
        return reply

    async def attach_anew(self) -> Reply:
        self._waiting_bytes = 0
        return await self.attach()

    async def leave(self) -> Reply:
        self.has_left = True
        return answered("answer")

    async def attach_elsewhere(self) -> Reply:
        reply = await self._send(OCTETS, _SMALL_BYTES, _Connections()) or answered("attached")
        reply.epoch = LIMITS.epoch
        return reply

    async def attach_as(self, kind: str) -> Reply:
        reply = await self._send(kind, _SMALL_BYTES, self._pool)
        if reply is None and kind in _FORMATS:
            self.attached, reply, self.format = LIMITS, answered("attached"), BodyFormat(kind)
        return reply or answered("status", 415)

    async def exchange(
        self,
        size: int = 0,
        *,
        hold_s: float = 0,
        lane: int = 0,
        own: _Connections | None = None,
        is_text: bool = False,
    ) -> Reply:
        began_s = _now()
        reply = await self._send(self.format.value, max(size, _SMALL_BYTES), own or self._pool, hold_s, is_text=is_text)
        if reply is None:
            self._serial += 1
            reply = answered(serial=self._serial)
        reply.seconds = _now() - began_s
        return reply

    repeat = exchange

    async def ask(self, size: int, *, lane: int = 0, most: int = 0) -> Reply:
        reply = await self._send(self.format.value, size, self._pool, is_text=True)
        self._waiting_bytes += size if reply is None else 0
        return reply or answered()

    async def fetch(self, size: int, *, lane: int = 0, is_repeat: bool = False) -> Reply:
        reply = await self._send(self.format.value, _SMALL_BYTES, self._pool)
        if reply is None:
            if min(size, self._waiting_bytes) > self._answers_max:
                await asyncio.sleep(3600)
            self._serial += 1
            reply = answered(serial=self._serial)
            reply.bytes = max(_EMPTY_BYTES, min(size, self._waiting_bytes))
            self._waiting_bytes -= min(size, self._waiting_bytes)
        return reply

    async def claim_exit(self) -> Reply:
        return await self._send(OCTETS, _SMALL_BYTES, self._pool) or answered("status", 403)

    async def send_unfinished(self, seconds: float) -> tuple[bool, Reply]:
        return True, await self._send("text/plain", 2048, self._pool, is_text=True) or answered("status", 415)

    async def odd_expectation(self) -> Reply:
        return await self._get() or _of_the_relay(417)

    async def big_head(self) -> Reply:
        return await self._get() or _of_the_relay(400)

    async def page(self) -> Reply:
        reply = await self._get() or _of_the_relay(405)
        if reply.status == 405 and "server" in reply.headers:
            reply.headers["allow"] = "POST"
        return reply

    async def link(self, seconds: float, *, stay_s: float = 0, is_websocket: bool = False) -> str:
        try:
            refused = await self._judge(Seen(_now(), True, "GET"), [])
        except ProbeError as error:
            return str(error)
        if refused is not None:
            return f"HTTP {refused.status} instead of an upgrade: refused"
        if not self._has_link:
            return "HTTP 426 instead of an upgrade: Upgrade to tunnel-link/1"
        await asyncio.sleep(min(stay_s, self._life_s))
        return "the connection was upgraded, but then it ended" if stay_s > self._life_s else ""

    async def reconnect(self) -> None:
        self._pool = _Connections()

    @asynccontextmanager
    async def own_connection(self) -> AsyncIterator[_Connections]:
        yield _Connections()

    async def _get(self) -> Reply | None:
        return await self._judge(self._seen("GET", "", 0, 0.0, self._pool), [])

    async def _send(
        self, kind: str, size: int, used: _Connections, hold_s: float = 0.0, *, is_text: bool = False
    ) -> Reply | None:
        noise_bits = _BASE64_BITS if self.format in TEXT_FORMATS else _NOISE_BITS
        bits = _TEXT_BITS if is_text else noise_bits if size >= _NOISE_FROM_BYTES else _SMALL_BITS
        seen = self._seen("POST", kind, size, bits, used)
        opened_s = used.idle.pop() if not seen.opens else seen.at_s
        reply = await self._judge(seen, used.idle, opened_s)
        if reply is None:
            self.moved_bytes += size
            await asyncio.sleep(_TRIP_S + hold_s)
        used.idle.append(opened_s)
        return reply

    def _seen(self, method: str, kind: str, size: int, bits: float, used: _Connections) -> Seen:
        used.idle[:] = [opened_s for opened_s in used.idle if _now() - opened_s < self._life_s]
        used.opened += not used.idle
        return Seen(_now(), not used.idle, method, kind, size, bits)

    async def _judge(self, seen: Seen, idle: list[float], opened_s: float = 0.0) -> Reply | None:
        """Return the reply in place of the relay's, or None if the request passes."""
        self.asked.append(seen)
        for rule in self._rules:
            judged: Judged = rule.judge(seen)
            self.refused += judged.status != 0
            if judged.status == RESET:
                raise cut()
            if judged.status == SILENCE:
                await asyncio.sleep(3600)
            if judged.status:
                reply = foreign(judged.status, "refused")
                reply.wait_ms = judged.retry_after_s * 1000
                await asyncio.sleep(_TRIP_S)
                return reply
            await asyncio.sleep(judged.delay_s)
        return None


def _now() -> float:
    return asyncio.get_running_loop().time()


def _of_the_relay(status: int) -> Reply:
    return foreign(status, "", server="Python/3.11 aiohttp/3.14.5")
