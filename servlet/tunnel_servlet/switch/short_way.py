"""The short way through the relay: the usual batch waits as one parcel where nothing else waits, and leaves as it came.

The usual batch brings an ACK, a packet of DATA, or both, for one bound route. On the general way, each of its packets
goes through a queue, a ring and three budgets, and comes out in the same order. `Forwarder` asks `pass_on`, which
returns 0, so that the general way is taken, if one of these does not hold:

    what must hold                                                      otherwise
    ------------------------------------------------------------------  ------------------------------------------
    one or two packets: an ACK, DATA, or an ACK and then DATA           control packets leave before the stream
    they are small, and none is larger than a packet may be             a batch may not hold both; one is refused
    they have one source, whose route is bound, and name its other end  they are refused, held or readdressed
    nothing waits in the mailbox of the other side                      each queue has its turn
    the queue was empty when it last had its turn, and has no rates     it has to wait for its turn
    DATA is the next in order, within the reservation of the queue      it may be late, a copy, or more than fits
    every budget has room for all of them                               one is dropped, and named to its sender

What the packets cost, and who pays, does not depend on the way: `Mailbox` charges a parcel when it comes, counts it as
outstanding when it leaves, and releases its packets when they have arrived. Whatever else happens to the mailbox while
a parcel waits unpacks it first: its packets then wait as if they had come the general way.
"""

from collections.abc import Sequence

from tunnel.wire import HEADER_SIZE, Frame, PacketType
from tunnel_servlet.switch.config import FRAME_OVERHEAD_BYTES
from tunnel_servlet.switch.model import ServedAttachment

__all__ = ["pass_on"]

_SMALL_BYTES = 4096  # half of what a batch of any carrier holds, beside the overhead of its packets
_ACK, _DATA = int(PacketType.ACK), int(PacketType.DATA)


def pass_on(attachment: ServedAttachment, frames: Sequence[Frame], packet_bytes_max: int) -> int:
    """Put the packets into the mailbox of the other side of their route as one parcel, and return their size in bytes.

    Return 0, and change nothing, if they must take the general way.
    """
    first, last = frames[0], frames[-1]
    source, kind = first.source, last.type
    size = len(first.data)
    if first is not last:
        if len(frames) != 2 or first.type != _ACK or kind != _DATA:
            return 0
        if last.source != source or last.destination != first.destination:
            return 0
        size += len(last.data)
    elif kind != _DATA and kind != _ACK:
        return 0
    leg = attachment.legs.get(source)
    if leg is None or not leg.far_id or leg.far_id != first.destination:
        return 0
    if size > _SMALL_BYTES or size > packet_bytes_max:
        return 0
    far = leg.far
    queue, mailbox = far.queue, far.mailbox
    if queue.paces or not queue.is_fresh or mailbox.waiting:
        return 0
    if kind == _DATA:
        ledger = queue.ledger
        if last.sequence != (ledger.newest + 1) & 0xFFFFFFFF or not ledger.is_known:
            return 0
        if len(last.data) - HEADER_SIZE > queue.reserved_bytes:
            return 0
    charged = size + len(frames) * FRAME_OVERHEAD_BYTES
    return size if mailbox.put_parcel(queue, frames, charged) else 0
