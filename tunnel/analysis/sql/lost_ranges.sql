-- Runs of neighbouring packets that never arrived, the longest first; at most 50.
-- Reads: troubled.
-- first, last: packet numbers. attempts: the most for any packet of the run.
-- Neighbouring packets have the same difference between position and rank ("gaps and islands").
with missing as (
    select
        stream,
        sequence,
        position,
        size_bytes,
        sent,
        position - row_number() over (partition by stream order by position) as island
    from troubled
    where judged and received = 0 and not proven and sent > 0
)
select
    stream,
    min_by(sequence, position) as first,
    max_by(sequence, position) as last,
    count(*) as packets,
    sum(size_bytes) as bytes,
    max(sent) as attempts
from missing
group by stream, island
order by packets desc, stream, first
limit 50
