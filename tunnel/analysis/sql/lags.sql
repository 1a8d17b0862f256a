-- For how long of each silence the event loops of its sender (lag_us), of the peer and of their relay were late.
-- Times: microseconds.
-- Reads: silences, connects, streams, events.
-- A lag lasts from the moment at which the loop should have run until it ran. The loop often handles packets that came
-- during the lag before it records the lag, so the record alone would lie after the silence. Several nodes of one
-- process record the same lag, which counts once.
--
-- Clocks: those by which nothing arrives before it was sent are taken for one clock, as on one machine. Otherwise the
-- shortest times there and back differ by twice the difference of the clocks (ahead_us), if the path is as long both
-- ways; where nothing came back, half a round trip is used. The route was bound (connects: kind 9) at about the time of the
-- answer to CONNECT; at the relays to which the connection moved later, the common time has to do.
with ends as (
    select
        there.stream,
        there.other,
        there.receiver,
        there.delay_us,
        back.delay_us as back_us,
        coalesce(there.trip_us_p50, 0) as trip_us,
        there.delay_us >= 0 and coalesce(back.delay_us >= 0, there.delay_us <= there.trip_us_p99, true) as is_one
    from streams as there
    left join streams as back on there.other = back.stream
),
peers as (
    select
        stream,
        other,
        receiver,
        case
            when is_one then 0
            else cast(round(coalesce((delay_us - back_us) / 2, delay_us - trip_us / 2)) as bigint)
        end as ahead_us
    from ends
),
asked as (
    select
        stream,
        min(case when kind = 6 then t end) as asked_us,
        min(case when kind = 7 then t end) as answered_us
    from connects
    group by stream
),
bound as (
    select stream, writer_id as relay, min(t) as t, min(min(t)) over (partition by stream) as first_t
    from connects
    where kind = 9
    group by stream, writer_id
),
routes as (
    select
        bound.stream,
        bound.relay,
        case
            when bound.t between asked.asked_us and asked.answered_us or bound.t > bound.first_t then 0
            else coalesce(bound.t - coalesce(asked.answered_us, asked.asked_us), 0)
        end as ahead_us
    from bound
    join asked on bound.stream = asked.stream
),
-- for the other direction, count from the clock of its sender, which is ahead of the first sender's
relays as (
    select stream, relay, ahead_us from routes
    union all
    select peers.other as stream, routes.relay, routes.ahead_us - coalesce(peers.ahead_us, 0) as ahead_us
    from routes
    join peers on routes.stream = peers.stream
),
-- a relay that is the other end, too, has one clock
known as (
    select
        peers.stream,
        peers.receiver,
        peers.ahead_us,
        relays.relay,
        case when relays.relay = peers.receiver then peers.ahead_us else relays.ahead_us end as relay_ahead_us
    from peers
    left join relays on peers.stream = relays.stream
),
edges as (
    select
        silences.stream,
        silences.stall,
        places.whose,
        case places.whose when 'lag' then silences.writer_id when 'peer' then known.receiver else known.relay end
            as writer_id,
        case when times.edge = 0 then silences.start_us else silences.end_us end
            + case places.whose when 'lag' then 0 when 'peer' then known.ahead_us else known.relay_ahead_us end as t
    from silences
    join known on silences.stream = known.stream
    cross join (
        select 'lag' as whose union all select 'peer' as whose union all select 'relay' as whose
    ) as places
    cross join (select 0 as edge union all select 1 as edge) as times
),
marks as (
    select
        events.writer_id,
        case when turns.turn = 1 then events.time_us - events.latency_us else events.time_us end as t,
        turns.turn,
        cast(null as bigint) as stream,
        cast(null as bigint) as stall,
        '' as whose
    from events
    cross join (select 1 as turn union all select -1 as turn) as turns
    where events.event = 'loop_lag'
    union all
    select writer_id, t, 0 as turn, stream, stall, whose
    from edges
    where writer_id is not null and t is not null
),
counted as (
    select
        *,
        sum(turn) over (
            partition by writer_id order by t, stall nulls first, stream, whose, turn
            rows between unbounded preceding and current row
        ) > 0 as is_late
    from marks
),
lasted as (
    select
        *,
        case when lag(is_late) over by_time then t - lag(t) over by_time else 0 end as lasted_us
    from counted
    window by_time as (partition by writer_id order by t, stall nulls first, stream, whose, turn)
),
added as (
    select
        *,
        sum(lasted_us) over (
            partition by writer_id order by t, stall nulls first, stream, whose, turn
            rows between unbounded preceding and current row
        ) as late_us
    from lasted
),
late as (
    select stream, stall, whose, writer_id, max(late_us) - min(late_us) as us
    from added
    where stall is not null
    group by stream, stall, whose, writer_id
)
select
    stream,
    stall,
    max(case when whose = 'lag' then us end) as lag_us,
    max(case when whose = 'peer' then us end) as peer_lag_us,
    max(case when whose = 'relay' then us end) as relay_lag_us
from late
group by stream, stall
