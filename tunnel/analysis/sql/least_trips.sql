-- The shortest round trip of each stream (us, microseconds), and the id of the node that sends. Of a connection that
-- moved to another relay, where its end is another node, it is the first one.
-- Reads: packets, connects.
with answered as (
    select stream, min(t) as t
    from connects
    where kind = 7
    group by stream
)
-- what was sent before CONNECT was answered is acknowledged only after that
select packets.stream, min_by(packets.sender, packets.position) as sender, min(packets.trip_us) as us
from packets
left join answered on packets.stream = answered.stream
where packets.trip_us is not null and coalesce(packets.sent_us >= answered.t, true)
group by packets.stream
