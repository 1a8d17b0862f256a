-- The events of a part of the time. events.sql explains the columns.
-- Reads: whole. Parameters: since_us, until_us (microseconds of the common time).
select *
from whole
where time_us between :since_us and :until_us
