-- One row for each numbered packet of each stream: what its sender did, what arrived, and its neighbours.
-- Times are microseconds, sizes bytes.
-- Reads: flow, spans (writer_id, until_us: its last record, holes: the times for which it has no records).
-- All columns are numbers, because rows with texts are slower to group and to sort.
--
-- sender: the node's id. receiver: the writer's id. position: the distance from the first packet of the stream by time; it
-- is negative if older packets follow. cause: the cause of the first repeat, as a number (result.CAUSES). batch: that of
-- the first attempt. sent, received: attempts. A mask has a bit for each attempt. acked: how many packets the first
-- acknowledgement of this number acknowledged.
-- What is not known is not a loss:
-- both_ends: true for a stream traced at both ends, false if one end certainly was not, null if the trace does not
-- tell: nothing of it was received or acknowledged. proven: a cumulative acknowledgement says that the packet arrived.
-- is_open: it may still have been on its way when the trace of its receiver ended. in_doubt: its arrival may be among
-- the records that the receiver's writer lost. judged: the fate of each of its attempts is known.
-- lost, needless: attempts. lost_first: 1 if the first attempt was lost, 0 if it arrived.
--
-- trip_us: the round trip from sending to acknowledgement, as the sender saw it. It is known if an acknowledgement moved
-- the cumulative number up to this packet, and if all packets between the old and the new number had been sent once and
-- were acknowledged for the first time. It includes the time for which the receiver delayed the acknowledgement.
-- trip_before: the trip before it in the stream. burst: the number of neighbouring packets whose first attempts were
-- lost, at the last one of them.
-- hol_us: how long it waited for earlier packets. late_us: by how much a later packet had overtaken it.
with numbered as (
    select
        stream,
        sequence,
        max(other) as other,
        max(case when kind = 1 then node_id end) as sender,
        max(case when kind = 2 then writer_id end) as receiver,
        max(case when kind <= 2 then size_bytes end) as size_bytes,
        max(case when kind <= 2 and packet_type = 4 then size_bytes - 24 end) as payload_bytes,
        min(case when kind = 3 then t end) as acked_us,
        min_by(case when kind = 3 then acked end, case when kind = 3 then struct(t, number) end) as acked,
        min(case when kind = 1 then t end) as sent_us,
        max(case when kind = 1 then t end) as resent_us,
        min(case when kind = 2 then t end) as received_us,
        min(case when kind = 4 then t end) as recovered_us,
        count(*) filter (where kind = 1) as sent,
        count(*) filter (where kind = 2) as received,
        coalesce(bit_or(case when kind = 1 then cast(1 as bigint) << attempt end), 0) as sent_mask,
        coalesce(bit_or(case when kind = 2 then cast(1 as bigint) << attempt end), 0) as received_mask,
        coalesce(bit_or(case when kind = 5 then cast(1 as bigint) << attempt end), 0) as spurious_mask,
        max(
            case when kind = 1 and attempt = 1 then
                case cause
                    when 'retransmit_reordered' then 1
                    when 'retransmit_timeout' then 2
                    when 'pto_probe' then 3
                    when 'batch_given_up' then 4
                    when 'dropped_by_relay' then 5
                    when 'route_resumed' then 6
                    when 'handshake_timeout' then 7
                    else 0
                end
            end
        ) as cause,
        max(case when kind = 1 and attempt = 0 then batch end) as batch
    from flow
    where kind <= 5
    group by stream, sequence
),
begun as (
    select *, min(coalesce(sent_us, received_us)) over (partition by stream) as begin_us
    from numbered
),
based as (
    select
        *,
        min(case when coalesce(sent_us, received_us) = begin_us then sequence end) over (partition by stream) as base
    from begun
),
-- the distance on the circle of 2^32 numbers: at least -2^31 and below 2^31 (PROTOCOL 1.6)
placed as (
    select *, ((sequence - base + 2147483648) & 4294967295) - 2147483648 as position
    from based
),
-- what is known of the stream as a whole; the delay is measured by two clocks, so only its changes mean something
whole as (
    select
        *,
        max(case when acked_us is not null then position end) over (partition by stream) as acked_position,
        max(case when received > 0 then position end) over (partition by stream) as last_received,
        min(case when sent > 0 or received > 0 then position end) over (partition by stream) as lowest,
        max(sent) over (partition by stream) > 0 as is_sent,
        min(received_us - sent_us) over (partition by stream) as delay_min,
        max(received_us - sent_us) over (partition by stream) as delay_max,
        max(receiver) over (partition by stream) as receiving_writer
    from placed
),
-- A packet may take longer than any that arrived. So the latest time of arrival allows for the shortest delay plus
-- twice the difference between the longest and the shortest.
timed as (
    select /*+ BROADCAST(spans) */
        whole.*,
        case
            when is_sent and last_received is not null then true
            when last_received is not null or acked_position is not null then false
        end as both_ends,
        coalesce(position <= acked_position, false) as proven,
        coalesce(
            in_hole(holes, sent_us + delay_min, coalesce(resent_us, sent_us) + 2 * delay_max - delay_min), false
        ) as is_unseen,
        coalesce(sent_us + 2 * delay_max - delay_min >= until_us, false) as is_at_end
    from whole
    left join spans on whole.receiving_writer = spans.writer_id
    where sent > 0 or received > 0
),
-- a packet that was sent once and is acknowledged has arrived, although the record of it is missing
doubted as (
    select
        *,
        proven and received = 0 and sent = 1 as arrived_once,
        coalesce(both_ends, false) and received = 0 and not proven
            and ((sent <= 1 and position > last_received) or is_at_end) as is_open,
        coalesce(both_ends, false) and is_unseen and (sent_mask & ~received_mask) <> 0
            and not (proven and received = 0 and sent = 1) as in_doubt
    from timed
),
judged as (
    select
        *,
        coalesce(both_ends, false)
            and ((not is_open and not in_doubt and (received > 0 or not proven)) or arrived_once) as judged
    from doubted
),
-- the lowest attempt that arrived makes every later one needless
decided as (
    select
        *,
        case when judged and (received > 0 or not proven) then sent_mask & ~received_mask else 0 end as lost_mask,
        case
            when received_mask <> 0 then bit_count(sent_mask & ~((received_mask & -received_mask) * 2 - 1))
            else 0
        end as needless
    from judged
),
counted as (
    select
        *,
        bit_count(lost_mask) as lost,
        case when judged then cast(lost_mask & 1 as int) end as lost_first
    from decided
),
neighboured as (
    select
        *,
        min(received_us) over behind as earliest_behind_us,
        max(received_us) over so_far as deliverable_us,
        lag(lost_first) over forward as lost_before,
        lead(lost_first) over forward as lost_after,
        row_number() over forward as place,
        coalesce(max(case when acked_us is not null then position end) over earlier, lowest - 1) as acked_before,
        coalesce(max(case when sent > 1 then position end) over so_far, lowest - 1) as resent_position
    from counted
    window
        forward as (partition by stream order by position),
        so_far as (
            partition by stream order by position rows between unbounded preceding and current row
        ),
        earlier as (
            partition by stream order by position rows between unbounded preceding and 1 preceding
        ),
        -- the later packets; the order is reversed so that one pass computes the minimum for all packets
        behind as (
            partition by stream order by position desc rows between unbounded preceding and 1 preceding
        )
),
measured as (
    select
        *,
        case
            when sent = 1 and acked >= position - acked_before and resent_position <= acked_before
                then greatest(acked_us - sent_us, 1)
        end as trip_us,
        case when lost_first = 1 and coalesce(lost_before, 0) = 0 then place end as burst_start
    from neighboured
)
select
    stream,
    sequence,
    position,
    other,
    sender,
    receiving_writer as receiver,
    size_bytes,
    payload_bytes,
    acked_us,
    sent_us,
    resent_us,
    received_us,
    recovered_us,
    sent,
    received,
    spurious_mask,
    cause,
    batch,
    both_ends,
    proven,
    is_open,
    in_doubt,
    judged,
    lost,
    needless,
    lost_first,
    lost_before,
    trip_us,
    last_known(trip_us) over earlier as trip_before,
    case when lost_first = 1 and coalesce(lost_after, 0) = 0 then place - max(burst_start) over so_far + 1 end as burst,
    deliverable_us - received_us as hol_us,
    case
        when (received_mask & 1) = 1 and earliest_behind_us < received_us then received_us - earliest_behind_us
    end as late_us
from measured
window
    so_far as (
        partition by stream order by position rows between unbounded preceding and current row
    ),
    earlier as (
        partition by stream order by position rows between unbounded preceding and 1 preceding
    )
