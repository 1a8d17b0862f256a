"""What the parts of the switch share."""

from collections import deque
from typing import TYPE_CHECKING

from tunnel.traces.record import TraceEvent, TraceReason, TraceRecord, TraceSink
from tunnel_servlet.switch.budgets import Budget
from tunnel_servlet.switch.config import SwitchConfig
from tunnel_servlet.switch.deadlines import Deadlines
from tunnel_servlet.switch.stats import Counters

if TYPE_CHECKING:
    from tunnel_servlet.switch.attachments import Attachment

__all__ = ["SwitchContext"]


class SwitchContext:
    """Configuration, counters, timers, the process's memory, the trace, and who has something new to be given."""

    def __init__(self, config: SwitchConfig, trace: TraceSink | None) -> None:
        self.config = config
        self.counters = Counters()
        self.deadlines = Deadlines()
        self.budget = Budget(config.process_bytes_max, config.pool_bytes(config.process_bytes_max))
        self.awake: deque[Attachment] = deque()
        self._trace = trace

    def wake(self, attachment: "Attachment") -> None:
        """Something waits for the attachment: the switch looks after it before it returns to its caller."""
        if not attachment.is_awake:
            attachment.is_awake = True
            self.awake.append(attachment)

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
        """Tell the trace, if there is one."""
        if self._trace is None:
            return
        record = TraceRecord(
            time_us=now,
            node=self.config.node,
            event=event,
            connection=connection,
            peer=peer,
            packet_type=packet_type,
            sequence=sequence,
            reason=reason or "",
            text=text,
        )
        self._trace(record)
