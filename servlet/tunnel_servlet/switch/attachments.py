"""An attachment: an endpoint's authenticated presence, with its lanes, links and mailbox (section 6)."""

from collections import OrderedDict
from typing import TYPE_CHECKING

from tunnel.exchange.served import Reply, ServedLane, ServedLimits
from tunnel.wire import Attached, Frame
from tunnel_servlet.switch.budgets import Budget
from tunnel_servlet.switch.context import SwitchContext
from tunnel_servlet.switch.deadlines import Deadline
from tunnel_servlet.switch.links import ServedLink
from tunnel_servlet.switch.mailbox import Mailbox

if TYPE_CHECKING:
    from tunnel_servlet.switch.routes import Leg, Route
    from tunnel_servlet.switch.services import Listener

__all__ = ["Account", "Attachment", "LaneOutbox"]


class Account:
    """What one user has at this relay."""

    __slots__ = ("attachments", "budget", "routes", "user")

    def __init__(self, user: str, budget: Budget) -> None:
        self.user = user
        self.budget = budget
        self.attachments = 0
        self.routes = 0  # opened by its attachments


class LaneOutbox:
    """A lane's way into the mailbox. It accounts for what the lane holds: the lane does not say what was confirmed."""

    __slots__ = ("_cut", "_incoming_bytes", "_mailbox", "_taken")

    def __init__(self, mailbox: Mailbox) -> None:
        self._mailbox = mailbox
        self._taken: list[Frame] = []
        self._cut = False  # what was taken last leaves in pieces
        self._incoming_bytes = 0  # of a packet that comes in pieces

    def take(self, limit_bytes: int) -> list[Frame]:
        """What leaves next. A lane takes again only when all that it took before was confirmed or put back."""
        self._confirmed()
        frames = self._mailbox.take(limit_bytes)
        self._taken = list(frames)
        self._cut = len(frames) == 1 and frames[0].size > limit_bytes
        return frames

    def put_back(self, frames: list[Frame]) -> None:
        """These did not arrive. They are always the last of what was taken."""
        del self._taken[len(self._taken) - len(frames) :]
        self._mailbox.put_back(frames)

    def waits(self) -> bool:
        """Whether there is anything to take."""
        return self._mailbox.waiting

    def applied(self, held_bytes: int) -> None:
        """The lane has applied a request, and not yet answered it: it holds `held_bytes`. All that it had taken and not
        put back was confirmed, unless that is one packet in pieces; the rest is a packet that comes in pieces."""
        if not self._cut:
            self._confirmed()
        self._count_incoming(max(0, held_bytes - sum(frame.size for frame in self._taken)))

    def close(self) -> None:
        """The lane is closed."""
        self._confirmed()
        self._count_incoming(0)

    def _confirmed(self) -> None:
        if self._taken:
            self._mailbox.confirmed(self._taken)
            self._taken = []
        self._cut = False

    def _count_incoming(self, size: int) -> None:
        if size != self._incoming_bytes:
            self._mailbox.budget.hold(size - self._incoming_bytes)
            self._incoming_bytes = size


class Attachment:
    """`mailbox` holds what waits for it, `legs` its sides of routes, `handed` the routes it is to accept or has
    accepted."""

    def __init__(self, identity: bytes, account: Account, context: SwitchContext, *, is_exit: bool) -> None:
        config = context.config
        self.identity = identity
        self.account = account
        self.name = ""
        self.claim = ""  # the name that it takes when it is heard
        self.is_heard = False  # it made an exchange or a link: its ATTACH was no late copy of a dead endpoint's
        self.is_exit = is_exit
        self.is_awake = False  # in the list of those who are to be given something
        self.is_gone = False
        self.last_seen_us = 0
        self.attached: Attached  # the answer to ATTACH, set by `renew`
        self.pull_interval_us = 0
        self.option_version = 0
        size = config.exit_mailbox_bytes_max if is_exit else config.mailbox_bytes_max
        # An exit serves all users: what waits for it is no user's own.
        budget = Budget(size, config.pool_bytes(size), context.budget if is_exit else account.budget)
        self.mailbox = Mailbox(budget, config, context.counters, lambda: context.wake(self))
        self.legs: dict[int, Leg] = {}  # by its own id
        self.handed: dict[bytes, Route] = {}  # by route key
        self.lingering: OrderedDict[Route, None] = OrderedDict()  # opened by it, the oldest first
        self.routes_opened = 0
        self.listeners: dict[str, Listener] = {}
        self.links: dict[int, ServedLink] = {}
        self.parked: OrderedDict[int, ServedLane] = OrderedDict()  # lanes with a held pull by its handle, oldest first
        self.expiry: Deadline  # set by whoever makes the attachment
        self.hold: Deadline
        self._awaited: dict[int, int] = {}  # how many routes are handed to it from this initiator's id
        self._lanes: dict[int, tuple[ServedLane, LaneOutbox]] = {}
        self._limits = ServedLimits(1)
        self._context = context

    @property
    def generation(self) -> int:
        """The newest (6.2)."""
        return self.attached.generation

    def set_pull_interval(self, wanted_ms: int) -> None:
        """What the endpoint asks for, as far as it may have it (2.7, 7.11)."""
        config = self._context.config
        self.pull_interval_us = min(max(wanted_ms * 1000, config.pull_interval_us_min), config.pull_interval_us_max)

    # --- whose connections it is to accept

    def awaits(self, initiator_id: int) -> None:
        """It was handed a CONNECT of this id."""
        self._awaited[initiator_id] = self._awaited.get(initiator_id, 0) + 1

    def unawait(self, initiator_id: int) -> None:
        """The CONNECT was answered, or nobody waits for it any more."""
        self._awaited[initiator_id] -= 1
        if not self._awaited[initiator_id]:
            del self._awaited[initiator_id]

    def is_awaited(self, initiator_id: int) -> bool:
        """Whether a connection from this id may be accepted by it at any moment."""
        return initiator_id in self._awaited

    # --- lanes

    def renew(self, attached: Attached, body_bytes_max: int) -> list[Reply]:
        """Start a generation: all lanes anew, what was not confirmed first in line (6.2)."""
        replies = self.close_lanes()
        self.attached = attached
        config = self._context.config
        self._limits = ServedLimits(
            lanes=config.lanes_max,
            packet_bytes_max=config.packet_bytes_max,
            answer_bytes_max=min(config.body_bytes_max, body_bytes_max),
            hold_us_max=config.hold_us_max,
        )
        return replies

    def close_lanes(self) -> list[Reply]:
        """End all lanes; the answers to what they held. What was to be confirmed on the first lane is first in line."""
        replies: list[Reply] = []
        for lane, outbox in reversed(self._lanes.values()):
            replies += lane.close()
            outbox.close()
        self._lanes.clear()
        return replies

    def lane(self, number: int) -> tuple[ServedLane, LaneOutbox]:
        """The lane of that number, which is below the limit announced."""
        found = self._lanes.get(number)
        if found is None:
            outbox = LaneOutbox(self.mailbox)
            found = ServedLane(number, outbox, self.evidence, self._limits), outbox
            self._lanes[number] = found
        return found

    def evidence(self) -> list[tuple[int, int]]:
        """For every lane the highest number answered (7.7)."""
        return [(number, lane.answered) for number, (lane, _) in self._lanes.items()]

    def hold_ends_us(self) -> int | None:
        """When the first held pull is to be answered empty."""
        return min((lane.parked_until_us for lane in self.parked.values()), default=None)

    # --- links

    def usable_link(self) -> ServedLink | None:
        """The link that may be given more: that on which the endpoint spoke last, or the newest."""
        most = self._context.config.unreceipted_bytes_max
        for link in reversed(self.links.values()):
            if link.unreceipted_bytes < most and not link.is_distrusted:
                return link
        return None

    def prefer(self, link: ServedLink, now: int) -> None:
        """The endpoint speaks on this one of several links: what waits leaves on it, too. Another one that is silent
        may be dead, though nobody was told."""
        links = self.links
        if next(reversed(links)) != link.link:
            links[link.link] = links.pop(link.link)
            self.distrust_links(now)

    def distrust_links(self, now: int) -> None:
        """The endpoint pulls, or speaks on another link: what silent ones have not delivered is first in line again."""
        since_us = now - self._context.config.link_stalled_us
        for link in reversed(self.links.values()):
            if link.is_stalled(since_us):
                link.is_distrusted = True
                self.mailbox.put_back(link.take_back())
