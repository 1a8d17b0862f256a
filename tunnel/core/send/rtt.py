"""Round-trip time and retransmission timeout (RFC 6298), in integer microseconds."""

from tunnel.core.constants import (
    ACK_DELAY_US,
    BACKOFF_MAX_US,
    REORDER_MIN_US,
    RTO_INITIAL_US,
    RTO_MIN_US,
    VARIANCE_MIN_US,
)

__all__ = ["RttEstimator"]


class RttEstimator:
    """Smooths RTT samples and derives every interval that depends on them.

    The caller must call `backed_off` when RTO expires, and `progressed` when something new is acknowledged.
    """

    __slots__ = ("backoff", "latest_us", "minimum_us", "pull_interval_us", "srtt_us", "variance_us", "widened")

    def __init__(self) -> None:
        self.latest_us = 0
        self.minimum_us = 0
        self.srtt_us = 0
        self.variance_us = 0
        self.backoff = 0
        self.widened = 0  # proven spurious retransmissions; each widens the reordering window by SRTT/4 (4.8)
        self.pull_interval_us = 0  # the sum of both sides' pull intervals (4.6)

    def sample(self, rtt_us: int) -> None:
        """Add an exact RTT sample (4.5) of at least 1 us."""
        self.latest_us = rtt_us
        if not self.srtt_us:  # RFC 6298 2.2
            self.minimum_us = self.srtt_us = rtt_us
            self.variance_us = rtt_us // 2
            return
        self.minimum_us = min(self.minimum_us, rtt_us)
        # RFC 6298 2.3: alpha 1/8, beta 1/4; RTTVAR first, with the old SRTT
        self.variance_us += (abs(self.srtt_us - rtt_us) - self.variance_us) // 4
        self.srtt_us = max(1, self.srtt_us + (rtt_us - self.srtt_us) // 8)

    def base_rto_us(self) -> int:
        """Return RTO without backoff (4.6)."""
        if not self.srtt_us:
            return min(RTO_INITIAL_US + self.pull_interval_us, BACKOFF_MAX_US)
        rto_us = self.srtt_us + max(4 * self.variance_us, VARIANCE_MIN_US) + ACK_DELAY_US + self.pull_interval_us
        return min(max(rto_us, RTO_MIN_US), BACKOFF_MAX_US)

    def rto_us(self) -> int:
        """Return the present RTO: doubled for every expiry since the last progress, at most 60 s (4.6)."""
        return min(self.base_rto_us() << min(self.backoff, 16), BACKOFF_MAX_US)

    def tail_probe_us(self) -> int:
        """Return the silence after which a tail probe leaves (4.7); 0 before the first sample."""
        if not self.srtt_us:
            return 0
        return 2 * self.srtt_us + ACK_DELAY_US + self.pull_interval_us

    def reorder_window_us(self, lanes: int) -> int:
        """Return the reordering window: how long beyond the RTT an overtaken packet is still waited for (4.8)."""
        start_us = self.srtt_us if lanes > 1 else self.srtt_us // 4
        return max(min(start_us + self.widened * self.srtt_us // 4, 4 * self.srtt_us), REORDER_MIN_US)

    def backed_off(self) -> None:
        """Double RTO, after it has expired."""
        self.backoff += 1

    def reset_backoff(self) -> None:
        """Reset the backoff, because something new was acknowledged."""
        self.backoff = 0

    def spurious(self) -> None:
        """Widen the reordering window, after a retransmission was proven spurious (4.8)."""
        self.widened = min(self.widened + 1, 16)
