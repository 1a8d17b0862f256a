-- The silences of senders that had work to do, before their causes are known. Times: microseconds of the common clock.
-- Reads: steps, spans (writer_id, until_us: its last record, holes). Parameter: open_us.
-- A silence after the last step of a stream is one if the sender still has work to do, and if it lasts longer than
-- open_us and than the timeout (is_open: nothing ended it). A silence in which the sender's writer lost records is not
-- counted: perhaps the sender was not silent.
-- node: where the sender was when the silence began; it may have ended at another relay, where the end is another node.
-- stall: its number in the stream. kind, sequence, attempt, cause: of the step that ended it; 0 and '' if nothing did.
-- steps.sql explains the other columns.
with ended as (
    select
        stream, node_before as node, writer_id, kind, sequence, attempt, cause, backlog_bytes_before, asked_before,
        is_full, is_at_edge, is_unread, t_before as start_us, t as end_us, false as is_open
    from steps
    where is_stall
    union all
    select /*+ BROADCAST(spans) */
        stream, node, steps.writer_id, 0 as kind, sequence, 0 as attempt, '' as cause,
        backlog_bytes_now as backlog_bytes_before, asked_now as asked_before,
        backlog_bytes_now > 0 and window_bytes >= 0 and window_bytes < least(backlog_bytes_now, 1024) as is_full,
        backlog_bytes_now > 0 and edge_bytes >= 0 and edge_bytes < least(backlog_bytes_now, 1024) as is_at_edge,
        in_flight_bytes_now = 0 or 2 * (window_bytes + in_flight_bytes_now) < granted_most as is_unread,
        t as start_us, until_us as end_us, true as is_open
    from steps
    join spans on steps.writer_id = spans.writer_id
    where is_last and (in_flight_bytes_now > 0 or backlog_bytes_now > 0 or asked_now > 0)
        and until_us - t > greatest(rto_us, :open_us)
)
select /*+ BROADCAST(spans) */
    ended.*,
    end_us - start_us as gap_us,
    row_number() over (partition by stream order by end_us, start_us, kind, sequence, attempt) as stall
from ended
left join spans on ended.writer_id = spans.writer_id
where not coalesce(in_hole(holes, start_us + 1, end_us - 1), false)
