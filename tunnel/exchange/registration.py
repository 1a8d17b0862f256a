"""Who we are at the relay: secret, id, generation and epoch (section 6), and what the relay allowed."""

from tunnel.exchange.config import LaneConfig
from tunnel.wire import VERSION, Attach, Attached, attachment_id

__all__ = ["Registration"]

_GENERATION_MAX = 2**32 - 1  # 7.11


class Registration:
    """The identity that every exchange names. `attached` is None until the relay answered the present generation."""

    def __init__(self, secret: bytes, endpoint_name: str, config: LaneConfig) -> None:
        self.id = attachment_id(secret)
        self.generation = 1
        self.attached: Attached | None = None
        self.is_fresh = True  # the relay of the present attachment knew nothing of us
        self._epoch: int | None = None  # of the last relay that we were attached to
        self.pull_interval_us = config.pull_interval_us  # asked for
        self._secret = secret
        self._name = endpoint_name
        self._body_bytes_max = config.answer_bytes_max

    def request(self) -> Attach:
        """The ATTACH of the present generation."""
        return Attach(
            secret=self._secret,
            generation=self.generation,
            pull_interval_ms=self.pull_interval_us // 1000,
            body_bytes_max=self._body_bytes_max,
            versions=(VERSION, VERSION),
            name=self._name,
        )

    def accept(self, message: Attached) -> str:
        """Take the answer; else what is wrong with it. A proxy may give us that of somebody else, or an old one."""
        if message.attachment_id != self.id:
            return "the answer to another endpoint's ATTACH"
        if message.generation != self.generation:
            return "the answer to an older ATTACH"
        self.attached = message
        # A late copy of an older ATTACH may have been there first: another epoch is another memory, whatever it says.
        self.is_fresh = message.fresh or message.epoch != self._epoch
        self._epoch = message.epoch
        return ""

    def renew(self, *, outbid: bool) -> bool:
        """Go on to a higher generation; `outbid`: the relay knows a higher one, so they must rise fast. Returns False
        when there is none left."""
        self.attached = None
        if self.generation == _GENERATION_MAX:
            return False
        self.generation = min(_GENERATION_MAX, 2 * self.generation + 1 if outbid else self.generation + 1)
        return True
