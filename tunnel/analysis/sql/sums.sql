-- Sums of packets and bytes by time bucket: received ones, and sent ones. Numbered packets that were sent are also
-- divided by relay and carrier, and repeats by cause.
-- Reads: events, relays. Parameters: begin_us, bucket_us (microseconds).
-- Three more kinds of rows by time bucket: the bytes that connections had moved, the faults that a test injected (both
-- by cause), and, with event '', all other events, which only show that something happened.
-- n: the number of events. counted: the sum of their counts.
with known as (
    select /*+ BROADCAST(relays) */
        events.*,
        coalesce(relays.relay, '') as relay,
        cast(floor((time_us - :begin_us) / :bucket_us) as bigint) as bucket,
        event in ('packet_sent', 'packet_received') and packet_type in (4, 5, 10, 13) as numbered,
        event in ('stream_data_moved', 'fault_injected') as is_told
    from events
    left join relays on events.node_id = relays.node_id
),
keyed as (
    select
        case when is_told or event in ('packet_sent', 'packet_received') then event else '' end as event,
        case when event = 'packet_sent' and numbered then relay else '' end as relay,
        case when event = 'packet_sent' and numbered then carrier else '' end as carrier,
        bucket,
        case when is_told or (event = 'packet_sent' and numbered and attempt > 0) then cause else '' end as cause,
        numbered,
        event = 'packet_sent' and numbered and attempt > 0 as repeated,
        size_bytes,
        count
    from known
)
select event, relay, carrier, bucket, cause, numbered, repeated,
    count(*) as n, sum(size_bytes) as bytes, sum(count) as counted
from keyed
group by event, relay, carrier, bucket, cause, numbered, repeated
order by event, relay, carrier, bucket, cause, numbered, repeated
