-- One row for each stream: counts of packets and bytes, waiting times, round trips, and transitions between losses.
-- Times are microseconds, sizes bytes.
-- Reads: packets.
-- A packet arrived if the receiver recorded it, or if a cumulative acknowledgement says so.
-- receiver: the writer's id. delay_us: the shortest time from sending to arrival, by two clocks. useful_bytes and
-- known_bytes: of the packets whose fate is known, as the base of shares. trips: the number of round trips.
-- n00 to n11: pairs of neighbours whose first attempts arrived (0) or were lost (1).
select
    stream,
    max(other) as other,
    max(receiver) as receiver,
    min(received_us - sent_us) as delay_us,
    max(both_ends) as both_ends,
    min(sent_us) as begin_us,
    max(resent_us) - min(sent_us) as duration_us,
    max(received_us) - min(received_us) as receiving_us,
    sum(sent) as packets,
    count(*) filter (where sent > 0) as unique_packets,
    sum(sent * size_bytes) as bytes,
    sum(case when sent > 0 then size_bytes end) as unique_bytes,
    sum(greatest(sent - 1, 0) * size_bytes) as resent_bytes,
    sum(case when received > 0 or proven then coalesce(payload_bytes, 0) else 0 end) as payload_bytes,
    sum(case when sent > 0 and (received > 0 or proven) then size_bytes end) as useful_bytes,
    sum(case when sent > 0 and (received > 0 or proven or judged) then sent * size_bytes end) as known_bytes,
    sum(case when judged then sent end) as judged,
    sum(case when both_ends then greatest(sent - 1, 0) end) as judged_repeats,
    count(*) filter (where in_doubt) as in_doubt,
    count(*) filter (where received > 0) as received_packets,
    sum(greatest(received - 1, 0)) as duplicates,
    sum(lost) as lost,
    sum(needless) as needless,
    count(*) filter (where is_open) as open_packets,
    count(*) filter (where judged and received = 0 and not proven) as never_arrived,
    max(sent) as attempts_max,
    count(*) filter (where late_us is not null) as reordered,
    max(late_us) as late_us_max,
    count(*) filter (where hol_us > 0) as waited,
    cast(percentile_disc(0.5) within group (order by hol_us) as bigint) as hol_us_p50,
    cast(percentile_disc(0.99) within group (order by hol_us) as bigint) as hol_us_p99,
    count(trip_us) as trips,
    cast(percentile_disc(0.5) within group (order by trip_us) as bigint) as trip_us_p50,
    cast(percentile_disc(0.99) within group (order by trip_us) as bigint) as trip_us_p99,
    count(*) filter (where sent > 0 and not is_open and lost_before = 0 and lost_first = 0) as n00,
    count(*) filter (where sent > 0 and not is_open and lost_before = 0 and lost_first = 1) as n01,
    count(*) filter (where sent > 0 and not is_open and lost_before = 1 and lost_first = 0) as n10,
    count(*) filter (where sent > 0 and not is_open and lost_before = 1 and lost_first = 1) as n11
from packets
group by stream
