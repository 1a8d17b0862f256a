"""Divides a server's processor time among users, so that one user's requests do not delay those of another."""

from collections import OrderedDict

__all__ = ["TURN_US", "ProcessorShares"]

TURN_US = 5_000  # a user who spent more than this in one turn of the event loop waits for the next one
_SHARED_TURN_US = 2_000  # the same while other users are active, too: a round trip takes several turns
_BURST_US = 20_000  # a debt up to this has no effect
_WAIT_US_MAX = 250_000
_ACTIVE_US = 1_000_000  # users who spent something within this time share the processor
_SHARED = 0.9  # the part of the processor that several users share; the rest is for the event loop and for new users


class ProcessorShares:
    """Counts the processor time that users have spent beyond their shares.

    All users who are active have equal shares of the processor. A user who spends more is in debt, which the user's
    share pays back as time passes. After a charge that leaves a debt above _BURST_US, the server reads nothing from
    that user until the share has paid the debt back to _BURST_US, but for at most _WAIT_US_MAX. A larger debt may
    therefore outlast the wait; the user's next charge then starts the next wait.
    """

    def __init__(self) -> None:
        # By user: the debt, and when it was counted; the user who was charged least recently is first.
        self._debts: OrderedDict[str, tuple[int, int]] = OrderedDict()

    def charge(self, user: str, spent_us: int, now: int) -> int:
        """Charge processor time. Return for how long to read nothing from this user, in microseconds."""
        debts = self._debts
        while debts and now - next(iter(debts.values()))[1] > _ACTIVE_US:
            debts.popitem(last=False)
        debt_us, at_us = debts.get(user, (0, now))
        active = len(debts) + (user not in debts)
        share = _SHARED / active if active > 1 else 1
        debt_us = max(0, debt_us - int((now - at_us) * share)) + spent_us
        debts[user] = debt_us, now
        debts.move_to_end(user)
        if debt_us <= _BURST_US:
            return 0
        return min(_WAIT_US_MAX, int((debt_us - _BURST_US) / share))

    @property
    def turn_us(self) -> int:
        """The processor time that a user may spend in one turn of the event loop."""
        return TURN_US if len(self._debts) <= 1 else _SHARED_TURN_US

    def refund(self, user: str, spent_us: int) -> None:
        """Take back a charge, because another user pays."""
        if user in self._debts:
            debt_us, at_us = self._debts[user]
            self._debts[user] = max(0, debt_us - spent_us), at_us
