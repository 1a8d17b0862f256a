-- The moves of connections from one relay to another, as the ends recorded them. Times are microseconds.
-- Reads: events. Parameter: most (rows).
-- id: the end's own id of the connection; other: that of the peer. node: the end at the new relay. relays: both, as in
-- FROM -> TO. why: a cause of TraceCause.
select time_us as t, connection as id, peer as other, node, substr(text, 1, 500) as relays, cause as why
from events
where event = 'connection_moved'
order by t, id, node
limit :most
