-- What senders did while bytes waited for the application at the other end. us: microseconds.
-- Reads: unread, lives, steps, stalls.
-- of: 'limit' or 'stall', with its name; 'whole': all such times, whatever the sender did. is_main: of streams that carry
-- much; idle times count only for these.
with waits as (
    select unread.stream, greatest(unread.begin_us, lives.begin_us) as begin_us, unread.end_us, lives.is_main
    from unread
    join lives on unread.stream = lives.stream
),
parts as (
    select is_main, 'whole' as of, '' as name, end_us - begin_us as us
    from waits
    union all
    select
        is_main,
        'limit' as of,
        steps.limited_by as name,
        least(steps.t, waits.end_us) - greatest(steps.t_before, waits.begin_us) as us
    from waits
    join steps on waits.stream = steps.stream
    where steps.limited_by is not null and (is_main or steps.limited_by <> 'idle')
    union all
    select
        is_main,
        'stall' as of,
        stalls.why as name,
        least(stalls.end_us, waits.end_us) - greatest(stalls.start_us, waits.begin_us) as us
    from waits
    join stalls on waits.stream = stalls.stream
)
select of, name, is_main, sum(us) as us
from parts
where us > 0
group by of, name, is_main
order by of, name, is_main
