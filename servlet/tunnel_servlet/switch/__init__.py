"""The switch: forwards packets between attachments and stores them until their arrival is confirmed. Sans-I/O.

It is the relay's whole state. `SwitchHost` (`web/host.py`) owns it, passes in request bodies, batches of links and the
time in microseconds, and takes out responses, batches of links and the time of the next timer. The switch asks what a
user may do: the questions are in `decisions.py`, the answers in `access`. No input of a peer makes it raise.

Where to start
--------------

`switch.py` for the way in and out, `model.py` for what is remembered, `forwarding.py` for a packet's fate.

    in and out
      switch.py           the switch: requests, links and timers in; responses and batches out
      forwarding.py       the data path, the packets that the relay does not simply forward, and parts of large bodies
      short_way.py        the usual batch, which waits as one parcel where nothing else waits
      streaming.py        the streamed answers of all attachments
      responses.py        the answers to requests, and the statuses for bodies that cannot be decoded
    what is remembered
      model.py            accounts, attachments, routes and their legs, listeners; `Attention`, the attachments to serve
      context.py          what all parts share; deadlines.py has the timers, config.py the limits
      stats.py            counters, and the reasons why a packet was not delivered
    attachments
      lifecycle.py        ATTACH, generations, names, expiry
      registry.py         who is attached; inline_id.py has the ids of endpoints in the relay's own process
    mailboxes/            what waits for one attachment, and what it has taken and not yet confirmed
      mailbox.py          the packets for one attachment, and their order
      queues.py           one direction of one route; edges.py says how far its sender may send
      budgets.py          limits on memory at each level
      rate_turns.py       rates: streams leave when it is their turn
      lane_outbox.py, links.py, open_streams.py   what a lane, a link or a streamed answer has taken
    routes/               routes, and the services to which they lead
      openings.py         CONNECT, ACCEPTED and REJECTED: chooses the acceptor
      routes.py           hands on, parks, binds and releases
      waits.py            why a connection has no answer yet, in words
      accept_queues.py    CONNECTs that wait for a listener
      services.py, owners.py   who listens under a name, and to whom the name belongs
    operating/            the operator's side
      operator.py         what there is, and how to end it; rows.py has the tables
    besides
      review.py           ends what changed rules no longer allow
      decisions.py        the questions to the rules; witness.py is told what was decided, for the audit
      own_packets.py      the packets that the relay itself sends
      invariants.py       what always holds; tests and the simulator check it

The way of a packet
-------------------

`Switch.request` decodes the body and gives it to a `ServedLane` of `tunnel.exchange`, which says whether it is new.
Then `Forwarder.receive` takes each packet: one with a bound route goes to the queue of the route's other side
(`Mailbox.put`, `put_control`), one of the handshake to `Openings`, everything else to an exception with a counted
reason (`stats.Undelivered`). A mailbox in which packets begin to wait wakes its attachment; before `Switch` returns, it
serves those on a stream, a held pull or a link. The usual batch waits there as one parcel (`short_way`). `Mailbox.take`
gives packets out: those of no route, then control packets, then streams in turns. They count as held until `confirmed`
or `put_back`.
"""

__all__: list[str] = []
