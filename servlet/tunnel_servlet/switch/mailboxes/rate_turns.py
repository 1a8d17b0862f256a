"""Rates: streams of users whose rate is limited leave their queues when it is their turn (PROTOCOL 9.8)."""

from collections import deque
from functools import partial
from typing import TypeAlias

from tunnel.ground.rates import Flow, Pace
from tunnel.wire import Target
from tunnel_servlet.switch.deadlines import Deadline, Deadlines
from tunnel_servlet.switch.decisions import RatesOf
from tunnel_servlet.switch.stats import RateWait

__all__ = ["Pacing", "Payer", "no_rates"]

_UP, _DOWN = "up", "down"
_PACKET_PART, _PACKET_BYTES_MIN = 33, 4096  # the largest packet takes 30 ms at the rate, but has 4 KiB at least
_QUEUE_PART = 2  # as many bytes as the rate moves in half a second may wait in a queue

_Key: TypeAlias = tuple[str, str, str]  # user, rule (empty: all of the user's connections), direction


class Payer:
    """The base class of a queue whose stream may have to wait for rates.

    Without rates `flows` is empty. With rates, at most `cleared_bytes` of the stream may leave.
    """

    __slots__ = ("asked_bytes", "cleared_bytes", "flows", "is_asking", "paced_bytes_max", "paced_packet_bytes", "paces")

    def __init__(self) -> None:
        self.paces: list[Pace[Payer]] = []
        self.flows: list[Flow[Payer]] = []  # one for each pace
        self.cleared_bytes = 0
        self.is_asking = False
        self.asked_bytes = 0  # with which the queue passes its paces; 0 until it has passed the first
        self.paced_bytes_max = 0  # bytes that may wait in the queue, if there are rates
        self.paced_packet_bytes = 0  # the largest packet that the rates pass on smoothly; 0: any

    def next_bytes(self, turn_bytes: int) -> int:
        """Return the size of the packets that leave next: as many as fit into the turn, at least one if any waits."""
        raise NotImplementedError

    def attend(self) -> None:
        """Let the packets leave that may leave now."""
        raise NotImplementedError


class Pacing:
    """All rates of the switch. A queue asks; it is attended when its bytes have passed all of its paces in turn.

    The switch calls `serve` after each of its steps, so that queues need not know the time.
    """

    def __init__(self, deadlines: Deadlines) -> None:
        self.asked: deque[Payer] = deque()
        self._deadlines = deadlines
        self._paces: dict[_Key, Pace[Payer]] = {}
        self._timers: dict[Pace[Payer], Deadline] = {}
        self._rates_of: RatesOf = no_rates

    def limit_by(self, rates_of: RatesOf) -> None:
        """Use these rates for routes that `assign` gets from now on."""
        self._rates_of = rates_of

    def packet_bytes_max(self, user: str, target: Target) -> int:
        """Return the largest packet that a connection to the target should have, or 0 if no rate limits it."""
        return _packet_bytes(min(self._rates_of(user, target).values(), default=0))

    def assign(self, up: Payer, down: Payer, initiator: str, acceptor: str, target: Target, now: int) -> None:
        """Set the rates of both directions of a route.

        `up` is the queue to the acceptor. `initiator` and `acceptor` are the users at the two ends. `acceptor` is empty
        for an exit, whose connections other users pay for; `initiator` is empty for a stranger at a public place.
        """
        opened = self._rates_of(initiator, target) if initiator else {}
        served = self._rates_of(acceptor, target) if acceptor else {}
        for queue, forth, back in ((up, _UP, _DOWN), (down, _DOWN, _UP)):
            keys = [((initiator, rule, forth), rate) for rule, rate in opened.items()]
            keys += [((acceptor, rule, back), rate) for rule, rate in served.items()]
            self._set(queue, [self._pace(key, rate, now) for key, rate in keys])

    def ask(self, payer: Payer) -> None:
        """Note that packets of the queue wait for its rates."""
        if not payer.is_asking:
            payer.is_asking = True
            payer.asked_bytes = 0
            self.asked.append(payer)

    def serve(self, now: int) -> None:
        """Let the queues that have asked wait at the first of their paces, or go on if it is their turn."""
        while self.asked:
            payer = self.asked.popleft()
            if payer.paces:
                self._join(payer, 0, now)

    def forget_unused(self, users: set[str]) -> None:
        """Forget the paces of all users but these, except paces at which a queue still waits."""
        for key, pace in list(self._paces.items()):
            if key[0] not in users and pace.next_timeout() is None:
                self._deadlines.clear(self._timers.pop(pace))
                del self._paces[key]

    def waits(self, now: int) -> list[RateWait]:
        """Return how long each user has waited for each rate."""
        return [
            RateWait(user, rule, direction, pace.rate, pace.waited_us(now) // 1000)
            for (user, rule, direction), pace in self._paces.items()
        ]

    # --- inside

    def _pace(self, key: _Key, rate: int, now: int) -> Pace[Payer]:
        pace = self._paces.get(key)
        if pace is None:
            pace = self._paces[key] = Pace(rate)
            self._timers[pace] = Deadline(partial(self._run, pace))
        elif pace.rate != rate:
            pace.set_rate(rate, now)
            self._run(pace, now)
        return pace

    def _set(self, queue: Payer, paces: list[Pace[Payer]]) -> None:
        slowest = min((pace.rate for pace in paces), default=0)
        queue.paced_bytes_max = slowest // _QUEUE_PART
        queue.paced_packet_bytes = _packet_bytes(slowest)
        if paces == queue.paces:
            return
        queue.paces, queue.flows = paces, [Flow(queue) for _ in paces]
        queue.cleared_bytes = 0
        queue.is_asking = False  # `_run` passes over flows that still wait at the previous paces
        queue.attend()

    def _join(self, payer: Payer, index: int, now: int) -> None:
        pace = payer.paces[index]
        pace.join(payer.flows[index], now)
        self._run(pace, now)

    def _run(self, pace: Pace[Payer], now: int) -> None:
        """Let the streams pass whose turn it is, and set the timer for the next one."""
        while (flow := pace.poll(now)) is not None:
            payer = flow.owner
            if flow not in payer.flows:
                continue  # the rates of this queue were changed
            size = payer.asked_bytes or payer.next_bytes(pace.turn_bytes)
            if not size:
                payer.is_asking = False  # its route has ended, or its packets were dropped
                continue
            pace.pay(flow, size, now)
            payer.asked_bytes = size
            index = payer.flows.index(flow) + 1
            if index < len(payer.flows):
                self._join(payer, index, now)
            else:
                payer.is_asking = False
                payer.cleared_bytes += size
                payer.attend()
        due_us = pace.next_timeout()
        if due_us is not None:
            self._deadlines.set(self._timers[pace], max(due_us, now + 1))


def _packet_bytes(rate: int) -> int:
    return max(rate // _PACKET_PART, _PACKET_BYTES_MIN) if rate else 0


def no_rates(user: str, target: Target) -> dict[str, int]:
    """Limit nothing."""
    return {}
