-- The longest stalls. Times: microseconds. stalls.sql and meanwhile.sql explain the columns.
-- Reads: stalls. Parameter: most (rows).
select
    stream,
    node,
    start_us,
    gap_us,
    why,
    cause,
    attempt,
    is_open,
    lag_us,
    peer_lag_us,
    relay_lag_us,
    failures,
    no_pull_us,
    tcp_retransmits
from stalls
order by gap_us desc, stream, start_us
limit :most
