-- Of each stream, the CONNECT (kind 6), its answer (7), and the moments at which relays bound the route (9). t: microseconds.
-- Reads: flow.
select stream, writer_id, kind, t
from flow
where kind in (6, 7, 9)
