-- The holes between the records of writers of which records are missing.
-- Reads: events, writers (is_incomplete). Parameters: slack_us, range_bits.
-- A hole lies between two neighbouring records of a writer whose numbers show that others are missing between them.
-- A writer that dropped records reports it afterwards (trace_dropped), so the dropped ones lie before that report.
-- Holes that begin in the same interval of slack_us are one row: holes.merged would join them anyway.
-- Numbers are divided into ranges (of 2 to the power of range_bits), so that no window holds all records of a relay. The
-- last record of a range is also the first one of the next range, since a hole may lie between the two.
-- writer: its name. begin_us, end_us: the times of the two records.
with ranged as (
    select
        writers.writer,
        events.number >> :range_bits as number_range,
        events.number,
        events.time_us
    from events
    join writers on events.writer_id = writers.writer_id
    where writers.is_incomplete and events.number > 0
),
ends as (
    select writer, number_range, max(number) as number, max_by(time_us, struct(number, time_us)) as time_us
    from ranged
    group by writer, number_range
),
joined as (
    select writer, number_range, number, time_us
    from ranged
    union all
    select writer, lead(number_range) over (partition by writer order by number_range) as number_range, number, time_us
    from ends
),
numbered as (
    select
        writer,
        number,
        time_us,
        lag(number) over by_number as number_before,
        lag(time_us) over by_number as time_before
    from joined
    where number_range is not null
    window by_number as (partition by writer, number_range order by number, time_us)
),
found as (
    select writer, least(time_before, time_us) as begin_us, greatest(time_before, time_us) as end_us
    from numbered
    where number - number_before > 1
)
select writer, min(begin_us) as begin_us, max(end_us) as end_us
from found
group by writer, cast(floor(begin_us / :slack_us) as bigint)
order by writer, begin_us
