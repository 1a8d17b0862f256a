"""The objects that all parts of the switch share."""

from tunnel.traces.record import TraceEvent, TraceReason, TraceSink, TraceSource
from tunnel.wire import Frame
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.deadlines import Deadlines
from tunnel_servlet.switch.mailboxes.budgets import Budget
from tunnel_servlet.switch.mailboxes.rate_turns import Pacing
from tunnel_servlet.switch.stats import Counters, Undelivered
from tunnel_servlet.switch.witness import Witness

__all__ = ["SwitchContext"]

_REASONS = {Undelivered.INVALID: TraceReason.INVALID, Undelivered.TOO_LARGE: TraceReason.TOO_LARGE}
_AGE_MAX = 40  # 17 years


class SwitchContext:
    """Configuration, counters, timers, rates, the process's memory, the trace, and the witness if there is one."""

    def __init__(
        self,
        config: SwitchConfig,
        trace: TraceSink | None,
        started_us: int | None = None,
        witness: Witness | None = None,
    ) -> None:
        self.config = config
        self.witness = witness
        self._started_us = started_us
        self.counters = Counters()
        self.deadlines = Deadlines()
        self.pacing = Pacing(self.deadlines)
        self.budget = Budget(config.process_bytes_max, config.pool_bytes(config.process_bytes_max))
        self._trace = None if trace is None else TraceSource(trace, config.node)

    def age(self, now: int) -> int:
        """Return how long the relay has run, as ATTACHED says it (7.11); 0 if that is unknown."""
        return 0 if self._started_us is None else min(_AGE_MAX, ((now - self._started_us) // 1000).bit_length())

    def trace(
        self,
        event: TraceEvent,
        now: int,
        *,
        connection: int = 0,
        peer: int = 0,
        packet_type: int = 0,
        sequence: int = 0,
        reason: TraceReason | None = None,
        text: str = "",
    ) -> None:
        """Write a record to the trace, if there is one."""
        if self._trace is not None:
            self._trace.tell(
                event,
                now,
                connection=connection,
                peer=peer,
                packet_type=packet_type,
                sequence=sequence,
                reason=reason,
                text=text,
            )

    def drop(self, why: Undelivered, frame: Frame, now: int) -> None:
        """Count a packet that is not delivered, and write that to the trace."""
        setattr(self.counters, why.value, getattr(self.counters, why.value) + 1)
        self.trace_dropped(frame, _REASONS.get(why, TraceReason.NO_ROUTE), now)

    def trace_dropped(self, frame: Frame, reason: TraceReason, now: int) -> None:
        """Write to the trace that a packet is not delivered, which the mailbox has counted."""
        self.trace(
            TraceEvent.PACKET_DROPPED,
            now,
            connection=frame.source,
            peer=frame.destination,
            packet_type=frame.type,
            sequence=frame.sequence,
            reason=reason,
        )
