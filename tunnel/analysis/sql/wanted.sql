-- The ids (id) of the connections that a report is about, at both ends: all with an end at one of some nodes, or only
-- that with the id :id, if it is not 0.
-- Reads: whole, attached_nodes (node_id). Parameter: id.
with pairs as (
    select whole.connection, whole.peer
    from whole
    where whole.connection <> 0 and (
        (:id <> 0 and (whole.connection = :id or whole.peer = :id))
        or (:id = 0 and whole.node_id in (select node_id from attached_nodes))
    )
)
select connection as id from pairs
union
select peer as id from pairs where peer <> 0
