"""The carriers, which move batches between an endpoint and a relay: the endpoint's half of each. Here is the I/O.

A carrier satisfies the protocol `Carrier` in `base.py`. The driver (`tunnel/driver.py`) calls it: `push` with a batch,
`poll_event` for what has come, `handle_timeout` when its time is over. A carrier decides nothing about numbers, repeats
or sizes: it asks the state machines of `tunnel/exchange`, and carries out what they say with aiohttp and asyncio.

Where to start
--------------

`base.py`, then `exchanging.py` and `poll.py`, the shortest carrier. `tunnel/endpoint_making.py` makes the carrier
that a user asks for, as `tunnel/ground/carrier_names.py` describes it.

    carriers
      base.py             `Carrier`, and `Host`, through which a carrier calls the driver
      exchanging.py       a carrier of lanes over an `Exchanger`, which sends single requests
      poll.py             exchanges alone, with streamed answers or without
      roads.py            exchanges until a road works, then that road; carries out the decisions of the ladder
      memory.py           an endpoint in the process of its relay: it attaches without HTTP, then has a link
    http/                 exchanges over HTTP
      http_exchanger.py   sends numbered exchanges as POST, and hands over the answers, whole or piece by piece
      connections.py, reuse.py   one request at a time on each connection; whether connections are used again
      resending.py        a request as that before it, with another body
      codings.py          undoes the compression of devices on the path
      patience.py         which failures end an attach
    links/                the endpoint's end of one connection that stays open
      openers.py          the table of roads: what opens each of them
      upgrade.py, websocket_dial.py   GET .../link, with Upgrade to a link or to a websocket
      link_opener.py      opens one link at a time
      dialed_link.py, link_greeting.py   the first message and its answer
      open_link.py        a link in use, and its batches without a receipt; open_links.py: which link is for what
    halves/               what the endpoint and the relay both use of a link
      link_protocol.py    one half of a link as an asyncio protocol
      unsent_bytes.py     how much the kernel takes before it can send it; also for streamed answers
      websocket_transport.py   lets a link use a websocket as if it were TCP
    dialing/              the way to the relay
      dialing.py          all settings of connections: URL, token, proxy, authorities
      dial_secrets.py     token, headers and passwords, and their replacement while in use
      gateway.py, proxies.py, names.py   headers for gateways; the choice of a proxy; addresses
      proxy_connect.py, challenges.py   CONNECT through a proxy, and its authentication
      bounded_responses.py   connections that give up endless overhead
      failures.py         failures in words: what happened, and what to do
      redirects.py        recognises a server that answers in TLS alone
      asking.py           single requests to an identity provider, and for one to a relay
    probes/               the questions of `tunnel doctor`
      probe.py, probe_link.py, probe_certificate.py   single exchanges, a link, the certificate

How a batch leaves
------------------

`Driver.pump` asks `room`, fills a batch and calls `push`. `ExchangingCarrier` passes it to its lanes, and `advance`
sends what `Lanes.poll_request` returns through the exchanger, `HttpExchanger`. Once a link works, `RoadCarrier.push`
writes to the link instead. Bytes that reach a connection are counted on the way back: `on_sent`, then `Host.wrote`.

Every failure of a connection ends as a call of `Outcomes.failed` or `Carrier.link_lost`: the state machines decide what
is repeated. Modules besides `base` need aiohttp, so they are not imported here.
"""

from tunnel.carriers.base import Carrier, Host

__all__ = ["Carrier", "Host"]
