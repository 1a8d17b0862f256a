-- The time of senders by place: of the sending node (side 'sender'), of the process that receives ('receiver'), and of
-- the relay to which the sender was attached ('relay'). us: microseconds.
-- Reads: lives, steps, stalls, unread, writers, relays.
-- A connection that moved to other relays has a node at each; what is known of the time at a relay belongs to its node.
-- of: 'limit' or 'stall', with its name, or 'unread': bytes waited for the application at the receiver.
with reached as (
    select
        steps.stream,
        steps.node,
        steps.t,
        steps.is_last,
        names.name,
        case names.name
            when 'idle' then case when lives.is_main then steps.idle end
            when 'connecting' then steps.connecting
            when 'all_sent' then steps.all_sent
            when 'awaiting' then steps.awaiting
            when 'ending' then steps.ending
            when 'reader_slow' then steps.reader_slow
            when 'window_full' then steps.window_full
            when 'edge_reached' then steps.edge_reached
            when 'carrier_full' then steps.carrier_full
        end as us
    from steps
    join lives on steps.stream = lives.stream
    cross join (
        select 'idle' as name union all select 'connecting' union all select 'all_sent' union all select 'awaiting'
        union all select 'ending' union all select 'reader_slow' union all select 'window_full'
        union all select 'edge_reached' union all select 'carrier_full'
    ) as names
    where steps.is_last or steps.is_left
),
-- steps.sql has sums, which only grow
limited as (
    select
        stream,
        node,
        name,
        us - coalesce(lag(us) over (partition by stream, name order by us, t, is_last, node), 0) as us
    from reached
    where us > 0
),
parts as (
    select stream, node, 'limit' as of, name, us
    from limited
    where us > 0
    union all
    select stream, node, 'stall' as of, why as name, gap_us as us
    from stalls
    union all
    select
        unread.stream, lives.node, 'unread' as of, '' as name,
        unread.end_us - greatest(unread.begin_us, lives.begin_us) as us
    from unread
    join lives on unread.stream = lives.stream
    where unread.end_us > lives.begin_us
),
placed as (
    select parts.of, parts.name, parts.us, parts.node, writers.writer, relays.relay
    from parts
    join lives on parts.stream = lives.stream
    left join relays on xxhash64(parts.node) = relays.node_id
    left join writers on lives.receiver = writers.writer_id
),
sided as (
    select
        sides.side,
        case sides.side when 'sender' then node when 'receiver' then writer else relay end as place,
        of,
        name,
        us
    from placed
    cross join (
        select 'sender' as side union all select 'receiver' union all select 'relay'
    ) as sides
)
select side, place, of, name, sum(us) as us
from sided
where place is not null
group by side, place, of, name
order by side, place, of, name
