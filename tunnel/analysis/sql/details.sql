-- Counts of the events that are rare enough for percentiles of their latency; of tells them apart. Times: microseconds.
-- Reads: events.
-- 'exchange' by kind (name), event and status; 'batch' by carrier (place) and event; 'timer', that fired, by name;
-- 'detached': an endpoint lost its relay (only a relay gives a reason); 'moved', a connection to another relay, by cause
-- (name). n: the number of events. bytes: their sizes.
-- One record names all timers that fired together, which are at most 12.
with told as (
    select
        case
            when event like 'exchange_%' then 'exchange'
            when event in ('batch_receipted', 'batch_given_up') then 'batch'
            when event = 'timer_updated' and cause = 'expired' then 'timer'
            when event = 'detached' and reason = '' then 'detached'
            when event = 'connection_moved' then 'moved'
        end as of,
        event, case when event = 'connection_moved' then cause else text end as text, status, carrier, size_bytes, latency_us
    from events
),
named as (
    select
        of, case when of = 'timer' then split_part(text, ' ', place) else text end as name,
        event, status, carrier, size_bytes, latency_us
    from told
    cross join (
        select 1 as place union all select 2 union all select 3 union all select 4 union all select 5
        union all select 6 union all select 7 union all select 8 union all select 9 union all select 10
        union all select 11 union all select 12
    ) as places
    where of is not null and (place = 1 or (of = 'timer' and split_part(text, ' ', place) <> ''))
),
keyed as (
    select
        of,
        case when of = 'batch' then '' else name end as name,
        case when of in ('exchange', 'batch') then event else '' end as event,
        case when of = 'exchange' then status else 0 end as status,
        case when of = 'batch' then carrier else '' end as place,
        size_bytes, latency_us
    from named
)
select
    of,
    name,
    event,
    status,
    place,
    count(*) as n,
    sum(size_bytes) as bytes,
    cast(percentile_disc(0.5) within group (order by latency_us) as bigint) as latency_us_p50,
    cast(percentile_disc(0.99) within group (order by latency_us) as bigint) as latency_us_p99,
    max(latency_us) as latency_us_max
from keyed
group by of, name, event, status, place
order by of, name, event, status, place
