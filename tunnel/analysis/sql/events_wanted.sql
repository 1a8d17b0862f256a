-- The events of some connections and, without a connection, of the nodes that took part in them, in a part of the time.
-- events.sql explains the columns.
-- Reads: whole, wanted, wanted_nodes. Parameters: since_us, until_us (microseconds of the common time).
select whole.*
from whole
where whole.time_us between :since_us and :until_us and (
    whole.connection in (select id from wanted)
    or whole.peer in (select id from wanted)
    or (whole.connection = 0 and whole.node_id in (select node_id from wanted_nodes))
)
