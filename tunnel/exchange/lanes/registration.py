"""The endpoint's identity at the relay (section 6): secret, id, generation and epoch, and the limits of the relay."""

from tunnel.exchange.config import MILLISECOND_US, SECOND_US, LaneConfig
from tunnel.wire import VERSION, Attach, Attached, attachment_id

__all__ = ["OTHER_VERSION", "SEVERAL_RELAYS", "Registration"]

OTHER_VERSION = "the relay chose protocol version {}, but this endpoint speaks only {}: update the older side"
SEVERAL_RELAYS = (
    "several relays answer at this address by turns, and each one forgets what it does not see: configure the proxy in "
    "front of them to send each client to one relay (session stickiness), or name the URL of one relay"
)

_GENERATION_MAX = 2**32 - 1  # 7.11
_RETURNS_MAX = 10  # returns to the same epoch in quick succession; a single relay hardly ever causes ten
_RETURN_GAP_US = 10 * SECOND_US
# No single relay causes a change to another epoch that was met before. A failover and its end cause one such change;
# two within this time, for which a connection waits for its relay, are too many.
_CHANGES_US = 300 * SECOND_US
_EPOCHS_MAX = 64  # number of epochs that are remembered


class Registration:
    """The identity that every exchange carries.

    `attached` is None until the relay has answered ATTACH of the present generation.
    """

    def __init__(self, secret: bytes, endpoint_name: str, config: LaneConfig, *, identity: bytes | None = None) -> None:
        self.id = identity if identity is not None else attachment_id(secret)
        self.generation = 1
        self.attached: Attached | None = None
        self.slept_us = 0  # for how long the machine has slept, plus a constant: the caller's clock stood still
        self.is_fresh = True  # the last attach counts as fresh (6.3)
        # If the last attach was to another relay, and not to the same one after a restart: how long at least it already
        # ran while the earlier one still answered. Else 0.
        self.both_ran_us = 0
        self._epoch: int | None = None  # epoch of the last attachment
        self._epochs: set[int] = set()  # epochs of all attachments that are remembered
        self._returns = 0  # attachments, in quick succession, to the epoch of the attachment before
        self._returned_us = 0
        self._changed_us: int | None = None  # when the epoch last changed to another one that was met before
        self._meets_several = False
        self.pull_interval_us = config.pull_interval_us  # the interval that ATTACH asks for
        self._secret = secret
        self._name = endpoint_name
        self._body_bytes_max = config.answer_bytes_max

    @property
    def epoch(self) -> int:
        """The epoch of the relay; 0 while not attached."""
        return self.attached.epoch if self.attached is not None else 0

    @property
    def was_attached(self) -> bool:
        """Whether a relay has ever answered an ATTACH of this endpoint."""
        return self._epoch is not None

    @property
    def meets_several_relays(self) -> bool:
        """Whether several relays answer at this address by turns, none of which knows an attachment of the others."""
        return self._meets_several or self._returns >= _RETURNS_MAX

    def request(self) -> Attach:
        """Return the ATTACH of the present generation."""
        return Attach(
            secret=self._secret,
            generation=self.generation,
            pull_interval_ms=self.pull_interval_us // 1000,
            body_bytes_max=self._body_bytes_max,
            versions=(VERSION, VERSION),
            name=self._name,
        )

    def accept(self, message: Attached, now: int, *, known_us: int = -1) -> str:
        """Accept ATTACHED. Return "" on success, else what is wrong with it.

        A proxy may deliver the answer to another endpoint's ATTACH, or to an older one. `known_us`: when the newest
        request was sent that the relay of the attach before has answered; -1: unknown.
        """
        if message.attachment_id != self.id:
            return "the answer to another endpoint's ATTACH"
        if message.generation != self.generation:
            return "the answer to an older ATTACH"
        self.attached = message
        # Another epoch than before counts as fresh, even if the relay does not say so: with several relays at one
        # address, this one may still have state of an earlier attachment.
        self.is_fresh = message.fresh or message.epoch != self._epoch
        is_other = self._epoch is not None and message.epoch != self._epoch
        began_us = now - (MILLISECOND_US << (message.age - 1)) if message.age else now  # at the latest
        self.both_ran_us = max(0, known_us - began_us) if is_other else 0
        self._count_returns(message.epoch, now + self.slept_us)
        self._epoch = message.epoch
        return ""

    def _count_returns(self, epoch: int, now: int) -> None:
        """Count attachments to epochs that were met before. A relay that was restarted has a new epoch every time.

        `now` counts sleep: a laptop that wakes for some seconds every hour may be forgotten each time, by one relay.
        """
        if epoch == self._epoch:
            self._returns = self._returns + 1 if now - self._returned_us <= _RETURN_GAP_US else 1
            self._returned_us = now
        else:
            self._returns = 0
        if epoch != self._epoch and epoch in self._epochs:
            self._meets_several = self._changed_us is not None and now - self._changed_us <= _CHANGES_US
            self._changed_us = now
        if len(self._epochs) >= _EPOCHS_MAX:
            self._epochs.clear()
        self._epochs.add(epoch)

    def renew(self, *, outbid: bool) -> bool:
        """Move to a higher generation. Return False if there is none left.

        With `outbid` the relay knows a higher generation: ours is then more than doubled, to overtake it soon.
        """
        self.attached = None
        if self.generation == _GENERATION_MAX:
            return False
        self.generation = min(_GENERATION_MAX, 2 * self.generation + 1 if outbid else self.generation + 1)
        return True
