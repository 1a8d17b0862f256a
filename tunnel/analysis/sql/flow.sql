-- The events of numbered packets at both ends, and what happened to whole connections. Times are microseconds.
-- Reads: events_part (the events, or those of some streams).
-- A stream is one direction of a connection. Its name is the sender's id of the connection. Both ends record that id,
-- so their events can be joined without comparing clocks.
-- kind: 1 sent, 2 received, 3 acknowledged, 4 recovered, 5 recognised as needless; rows of these kinds have a packet
-- number, and so have those of kind 10: from this number on, acked packets beyond a gap. Of a whole connection: 6 its initiator asked for it (CONNECT), 7 it was answered, 8 it ended, 9 the relay bound
-- its route (endpoints record the resumed route, too, with the state of their timers). The row of an end belongs to the
-- stream whose sender recorded it.
-- packet_type: 4 DATA, 5 CLOSE, 10 OPTION, 13 FINISH have a number (PROTOCOL 1.5). attempt: at most 62, the last bit of a
-- mask. acked: the number of packets that the event acknowledged. t: the time.
with told as (
    select
        *,
        case
            when packet_type in (4, 5, 10, 13) or event in ('packets_acked', 'packets_sacked') then
                case event
                    when 'packet_sent' then 1
                    when 'packet_received' then 2
                    when 'packets_acked' then 3
                    when 'packet_recovered' then 4
                    when 'spurious_retransmit' then 5
                    when 'packets_sacked' then 10
                end
            when event = 'packet_sent' and packet_type = 1 then 6
            when event = 'packet_received' and packet_type in (2, 3) then 7
            when event = 'connection_closed' then 8
            when event = 'route_bound' or (event = 'route_resumed' and rto_us = 0) then 9
        end as kind
    from events_part
    where event in (
        'packet_sent', 'packet_received', 'packets_acked', 'packets_sacked', 'packet_recovered', 'spurious_retransmit',
        'connection_closed', 'route_bound', 'route_resumed'
    )
)
select /*+ REPARTITION(stream) */
    stream,
    case when kind <> 2 then peer else connection end as other,
    cast(kind as smallint) as kind,
    node,
    node_id,
    writer_id,
    number,
    time_us as t,
    packet_type,
    sequence,
    least(attempt, 62) as attempt,
    size_bytes,
    cause,
    rtt_us,
    srtt_us,
    rto_us,
    backoff,
    window_bytes,
    in_flight_bytes,
    backlog_bytes,
    edge_bytes,
    batch,
    carrier,
    count as acked
from told
where kind is not null
