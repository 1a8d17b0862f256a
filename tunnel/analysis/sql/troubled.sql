-- The packets that were lost or sent again. packets.sql explains the columns.
-- Reads: packets.
select
    stream,
    sequence,
    position,
    sender,
    batch,
    size_bytes,
    sent,
    received,
    proven,
    both_ends,
    judged,
    lost_first,
    burst,
    needless,
    cause,
    spurious_mask,
    sent_us,
    recovered_us
from packets
where sent > 1 or lost_first = 1 or (judged and received = 0 and not proven)
