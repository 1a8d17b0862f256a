-- The relays to which each node was attached, as it calls them, each with the time of the last attachment (microseconds).
-- Reads: events.
-- A relay, whose node is called so, records the user of each attachment instead.
select node_id, text as relay, max(time_us) as last_us
from events
where event = 'attached' and text <> '' and node <> 'relay'
group by node_id, text
