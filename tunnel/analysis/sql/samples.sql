-- All samples of two kinds (of) at time t, each with the sample before it in the same stream. Times: microseconds.
-- Reads: packets, steps.
-- 'trip' is the time from sending to acknowledgement. 'receipt' is the time from receipt to acknowledgement, less the
-- delay that the receiver reports: the sample that the transport itself takes, and from which it computes its RTO.
select stream, 'trip' as of, acked_us as t, trip_us as us, trip_before as us_before, cast(null as bigint) as rto_us
from packets
where trip_us is not null
union all
select stream, 'receipt' as of, t, rtt_us as us, rtt_before as us_before, case when rto_us > 0 then rto_us end as rto_us
from steps
where rtt_us > 0
