-- The lines of the trace files, with the defaults that lines leave out. tunnel/traces/record.py explains the columns.
-- Times are microseconds of the writer's own clock, sizes bytes.
-- Reads: stored (the rows of the tables that the ledger names).
-- source: the trace file. stream: flow.sql explains it. is_bad: the line is no JSON, or
-- lacks what every line has, or has an impossible number; it counts as nothing.
select
    source,
    version,
    version is null or (version = 1 and (time_us is null or node is null or event is null)) as is_bad,
    time_us,
    node,
    event,
    coalesce(connection, 0) as connection,
    coalesce(peer, 0) as peer,
    coalesce(packet_type, 0) as packet_type,
    coalesce(sequence, 0) as sequence,
    coalesce(attempt, 0) as attempt,
    coalesce(size_bytes, 0) as size_bytes,
    coalesce(cause, '') as cause,
    coalesce(reason, '') as reason,
    coalesce(rtt_us, 0) as rtt_us,
    coalesce(srtt_us, 0) as srtt_us,
    coalesce(rto_us, 0) as rto_us,
    coalesce(backoff, 0) as backoff,
    coalesce(window_bytes, 0) as window_bytes,
    coalesce(in_flight_bytes, 0) as in_flight_bytes,
    coalesce(backlog_bytes, 0) as backlog_bytes,
    coalesce(edge_bytes, -1) as edge_bytes,
    coalesce(batch, 0) as batch,
    coalesce(carrier, '') as carrier,
    coalesce(lane, 0) as lane,
    coalesce(exchange, 0) as exchange,
    coalesce(serial, 0) as serial,
    coalesce(status, 0) as status,
    coalesce(latency_us, 0) as latency_us,
    coalesce(count, 0) as count,
    coalesce(text, '') as text,
    coalesce(writer, '') as writer,
    coalesce(number, 0) as number,
    coalesce(wall_us, 0) as wall_us,
    stream
from stored
