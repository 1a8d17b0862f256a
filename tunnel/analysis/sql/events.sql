-- All events that count, in the common time of all writers. tunnel/traces/record.py explains the columns.
-- Times are microseconds, sizes bytes.
-- Reads: records, writers (writer, writer_id, ahead_us: by how much its clock is ahead of the common time).
-- writer_id: a number for the writer. node_id: a number for the node; numbers are sorted faster than texts.
select /*+ BROADCAST(writers) */
    writers.writer_id,
    xxhash64(records.node) as node_id,
    records.time_us - writers.ahead_us as time_us,
    records.node,
    records.event,
    records.connection,
    records.peer,
    records.packet_type,
    records.sequence,
    records.attempt,
    records.size_bytes,
    records.cause,
    records.reason,
    records.rtt_us,
    records.srtt_us,
    records.rto_us,
    records.backoff,
    records.window_bytes,
    records.in_flight_bytes,
    records.backlog_bytes,
    records.edge_bytes,
    records.batch,
    records.carrier,
    records.status,
    records.latency_us,
    records.count,
    records.text,
    records.number,
    records.stream
from records
join writers on records.writer = writers.writer
where records.version = 1 and not records.is_bad
