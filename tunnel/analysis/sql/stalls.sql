-- The stalls, each with the step that ended it, what happened meanwhile, and its cause: why, the first that fits.
-- docs/ANALYSIS.md explains the causes. Times: microseconds.
-- Reads: silences, meanwhile, lags, troubled.
with known as (
    select
        silences.*,
        meanwhile.failures,
        meanwhile.absences,
        meanwhile.no_pull_us,
        meanwhile.tcp_retransmits,
        meanwhile.ever_pulled,
        lags.lag_us,
        lags.peer_lag_us,
        lags.relay_lag_us,
        troubled.needless > 0 as was_needless,
        silences.kind = 1 and silences.attempt > 0 as is_repeat
    from silences
    left join meanwhile on silences.stream = meanwhile.stream and silences.stall = meanwhile.stall
    left join lags on silences.stream = lags.stream and silences.stall = lags.stall
    left join troubled on silences.stream = troubled.stream and silences.sequence = troubled.sequence
)
select
    stream,
    node,
    start_us,
    end_us,
    gap_us,
    kind,
    sequence,
    attempt,
    cause,
    is_open,
    lag_us,
    peer_lag_us,
    relay_lag_us,
    failures,
    absences,
    no_pull_us,
    tcp_retransmits,
    case
        when 2 * lag_us > gap_us then 'loop_lag'
        when 2 * relay_lag_us > gap_us then 'relay_loop_lag'
        when 2 * peer_lag_us > gap_us then 'peer_loop_lag'
        when absences > 0 then 'carrier_http'
        when is_repeat and cause in ('batch_given_up', 'route_resumed') then 'carrier_http'
        when is_full and is_unread then 'flow_control_peer'
        when failures > 0 then 'carrier_http'
        when asked_before > 0 then 'connecting'
        when tcp_retransmits > 0 then 'carrier_tcp'
        when ever_pulled > 0 and 2 * no_pull_us > gap_us then 'no_poll_outstanding'
        when is_at_edge then 'flow_control_relay'
        when is_repeat and was_needless then 'ack_delay_or_loss'
        when is_repeat and attempt > 1 then 'double_retransmission'
        when is_repeat and not backlog_bytes_before > 0 then 'tail_retransmission'
        when is_repeat then 'loss'
        when is_full then 'window_small'
        when backlog_bytes_before > 0 and kind = 1 then 'carrier_busy'
        when kind = 3 then 'packet_delay'
        when is_open then 'no_answer'
        else 'application'
    end as why
from known
