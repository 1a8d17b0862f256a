-- The exchanges of endpoints that were sent, and those that failed, were repeated or refused, by relay. n: their number.
-- Reads: events, relays.
select
    relays.relay,
    events.event,
    case when events.event = 'exchange_answered' then events.status else 0 end as status,
    count(*) as n
from events
join relays on events.node_id = relays.node_id
where events.event in ('exchange_sent', 'exchange_repeated', 'exchange_failed')
    or (events.event = 'exchange_answered' and events.status <> 200)
group by relays.relay, events.event, case when events.event = 'exchange_answered' then events.status else 0 end
order by relay, event, status
