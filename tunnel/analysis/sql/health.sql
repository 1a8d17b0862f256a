-- One row for each trace file and writer: its record numbers and times, and the records that could not be read.
-- Reads: records.
-- events, bad_lines, other_versions: numbers of lines. other_version: the highest unknown one.
-- first, last: record numbers. dropped: records that the writer reports as not written. begin_us, end_us: by its clock.
-- died: who repaired the file found that its process had died. wall_us: the wall clock when the writer's own clock was at zero.
select
    source,
    writer,
    count(*) filter (where version = 1 and not is_bad) as events,
    count(*) filter (where is_bad) as bad_lines,
    count(*) filter (where version <> 1 and not is_bad) as other_versions,
    max(case when version <> 1 then version end) as other_version,
    min(case when version = 1 and not is_bad and number > 0 then number end) as first,
    max(case when version = 1 and not is_bad and number > 0 then number end) as last,
    sum(case when event = 'trace_dropped' and not is_bad then count end) as dropped,
    min(case when version = 1 then time_us end) as begin_us,
    max(case when version = 1 then time_us end) as end_us,
    max(case when event = 'clock_read' then wall_us - time_us end) as wall_us,
    coalesce(max(case when event = 'process_died' then 1 end), 0) = 1 as died
from records
group by source, writer
