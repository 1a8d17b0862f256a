-- The nodes (node_id) that took part in the connections that a report is about.
-- Reads: whole, wanted.
select distinct whole.node_id
from whole
join wanted on whole.connection = wanted.id
