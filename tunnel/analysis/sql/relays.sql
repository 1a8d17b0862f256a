-- The relay to which each node was attached most recently.
-- Reads: attachments.
select node_id, max_by(relay, struct(last_us, relay)) as relay
from attachments
group by node_id
