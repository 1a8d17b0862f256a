-- The shortest time from sending at one writer to arrival at another, by their own clocks.
-- Reads: records. Parameter: one_of (of the DATA packets, one of so many is compared, chosen by its number).
-- begin_writer, end_writer: the names of the writers. us: the time, which is negative if the clocks differ so much.
with known as (
    select
        event = 'packet_sent' as is_sent,
        case when event = 'packet_sent' then connection else peer end as stream,
        case when event = 'packet_sent' then peer else connection end as other,
        sequence,
        attempt,
        writer,
        time_us
    from records
    where version = 1 and not is_bad and event in ('packet_sent', 'packet_received') and packet_type in (4, 5, 10, 13)
        and (packet_type <> 4 or mod(sequence * 40503, :one_of) = 0)
),
attempts as (
    select
        max(case when is_sent then writer end) as begin_writer,
        max(case when not is_sent then writer end) as end_writer,
        min(case when not is_sent then time_us end) - max(case when is_sent then time_us end) as us
    from known
    group by stream, other, sequence, attempt
)
select begin_writer, end_writer, min(us) as us
from attempts
where begin_writer <> end_writer and us is not null
group by begin_writer, end_writer
order by begin_writer, end_writer
