-- One row: the sums over all streams. Times are microseconds, sizes bytes; streams.sql explains the columns.
-- Reads: streams, steps. Parameter: main_share.
-- idle to carrier_full: the time by limit, outside stalls; granted_most: the largest window. Idle times and windows count
-- only for streams that carry 1/main_share of payload_most at least: in others, as in the direction of the answers, it is
-- normal that nothing is written. steps.sql and limits.py explain the limits.
-- both_ends, one_end, unknown_ends: streams by what the trace shows of them. payload_most: of any stream.
with ended as (
    select
        streams.*,
        steps.idle,
        steps.connecting,
        steps.all_sent,
        steps.awaiting,
        steps.ending,
        steps.reader_slow,
        steps.window_full,
        steps.edge_reached,
        steps.carrier_full,
        steps.granted_most,
        streams.payload_bytes * :main_share >= coalesce(most.payload_most, 0) as is_main
    from streams
    left join steps on streams.stream = steps.stream and steps.is_last
    cross join (select max(payload_bytes) as payload_most from streams) as most
)
select
    count(*) as streams,
    count(*) filter (where both_ends) as both_ends,
    count(*) filter (where not both_ends) as one_end,
    count(*) filter (where both_ends is null) as unknown_ends,
    coalesce(sum(packets), 0) as packets,
    coalesce(sum(unique_packets), 0) as unique_packets,
    coalesce(sum(bytes), 0) as bytes,
    coalesce(sum(unique_bytes), 0) as unique_bytes,
    coalesce(sum(resent_bytes), 0) as resent_bytes,
    coalesce(sum(payload_bytes), 0) as payload_bytes,
    coalesce(sum(useful_bytes), 0) as useful_bytes,
    coalesce(sum(known_bytes), 0) as known_bytes,
    coalesce(sum(judged), 0) as judged,
    coalesce(sum(judged_repeats), 0) as judged_repeats,
    coalesce(sum(in_doubt), 0) as in_doubt,
    coalesce(sum(received_packets), 0) as received_packets,
    coalesce(sum(duplicates), 0) as duplicates,
    coalesce(sum(lost), 0) as lost,
    coalesce(sum(needless), 0) as needless,
    coalesce(sum(open_packets), 0) as open_packets,
    coalesce(sum(never_arrived), 0) as never_arrived,
    coalesce(sum(reordered), 0) as reordered,
    coalesce(sum(waited), 0) as waited,
    max(payload_bytes) as payload_most,
    max(attempts_max) as attempts_max,
    max(late_us_max) as late_us_max,
    max(case when received_packets >= 100 then hol_us_p99 end) as hol_us_p99_max,
    coalesce(sum(duration_us), 0) as duration_us,
    sum(case when both_ends then n00 end) as n00,
    sum(case when both_ends then n01 end) as n01,
    sum(case when both_ends then n10 end) as n10,
    sum(case when both_ends then n11 end) as n11,
    coalesce(sum(case when is_main then idle end), 0) as idle,
    coalesce(sum(connecting), 0) as connecting,
    coalesce(sum(all_sent), 0) as all_sent,
    coalesce(sum(awaiting), 0) as awaiting,
    coalesce(sum(ending), 0) as ending,
    coalesce(sum(reader_slow), 0) as reader_slow,
    coalesce(sum(window_full), 0) as window_full,
    coalesce(sum(edge_reached), 0) as edge_reached,
    coalesce(sum(carrier_full), 0) as carrier_full,
    max(case when is_main then granted_most end) as granted_most
from ended
