-- The sending node, the receiving node, all nodes, the carrier, the relays and the user of a few streams.
-- Reads: flow, chosen (stream), attachments, events.
-- relays: all to which an end was attached; a connection that moved has a node at each. user: the one who opened the
-- connection, as a relay recorded it when it bound the route.
with bound as (
    select connection as stream, text
    from events
    where event = 'route_bound'
    union all
    select peer as stream, text
    from events
    where event = 'route_bound'
),
owners as (
    select bound.stream, max(bound.text) as owner
    from bound
    join chosen on bound.stream = chosen.stream
    group by bound.stream
)
select
    flow.stream,
    max(case when kind = 1 then node end) as sender,
    max(case when kind = 2 then node end) as receiver,
    array_sort(array_agg(distinct node) filter (where kind in (1, 2))) as nodes,
    max(case when kind = 1 and attempt = 0 then carrier end) as carrier,
    array_sort(array_agg(distinct relay) filter (where relay is not null)) as relays,
    max(owners.owner) as user
from flow
join chosen on flow.stream = chosen.stream
left join attachments on flow.node_id = attachments.node_id
left join owners on flow.stream = owners.stream
group by flow.stream
