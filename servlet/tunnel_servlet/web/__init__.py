"""The relay as a web service: aiohttp, the event loop, the clock, and the inline exit.

This package is the I/O around the switch. It authenticates and bounds what comes, lets users take turns at the
processor, and passes bytes in and out; where a packet goes is decided in `tunnel_servlet.switch`.

Where to start
--------------

`running.py` for the process, `application.py` for a request, `host.py` for the border to the switch.

    the process
      running.py          a relay with its listeners: signals, reloading, draining
      drain_outcome.py    what became of the connections while it drained
      relay.py            the switch, the tokens and the rules, as the handlers use them
      reloading.py        reads files again, and keeps the old ones while the new cannot be used
      admin.py, metrics.py   the listener for the operator; operator_access.py says whom it answers
      auditing.py         the events that go into the audit (`tunnel_servlet.audit`)
      inline_exit.py      the exit in this process
      parts.py            runs long work in parts
    tokens/               the life of tokens: watch.py ends what uses one that expires or is revoked, uses.py notes when
                          each was used, and lets one for a single use serve one endpoint; files.py stores both;
                          certificates.py reads the certificates that clients show, provider.py the keys of the
                          identity provider, and checks its tokens
    http/                 from a connection to a request
      acceptor.py         accepts, with limits; tls.py has the contexts, tls_input.py charges the records
      server.py           aiohttp's server, as the relay needs it
      handler.py          one connection, as aiohttp serves it; what any server needs is in its parts:
      head_deadline.py, unread_answer.py   a head that comes too late, an answer that nobody reads
      input_turns.py, pieces.py   the payer's turns; input that waits for them, and is parsed in pieces
      payers.py, heads.py   who pays before a token is known; requests that cost little
      bodies.py           reads bodies in their payers' turns; answers.py writes answers in one piece
      websocket_guard.py  watches frames before aiohttp parses them
    from a request to the switch
      application.py      POST .../exchange and GET .../link
      host.py             gives the switch its clock and its timer, and delivers what it returns
      answer_stream.py    writes a streamed answer
      relay_link.py       the relay's half of a link; websocket.py serves one on a websocket
    live/                 what the operator sees at the admin listener, and may end
      api.py              the paths; tables.py filters, sorts and cuts
      watch.py            samples for lines; denials.py has the last requests that the rules refused
      page.py, events.py  the page, and its stream of events
    public/               people without the tunnel
      ports.py, sides.py  the ports and names for them, and their connections
      request.py, proxy_header.py   their requests, checked; their addresses, passed on

The way of a request
--------------------

`Acceptor` accepts the connection, `RelayHandler` bounds its headers and charges it, `application._exchange` identifies
the user. If the body has not come yet, it holds its bytes against the user's limit, reads it and waits for the user's
turn. `SwitchHost` passes it to `Switch.request` and pumps: `_deliver` brings each response to the request that waits
for it, wakes streams and fills links, and then sets the timer. On a link, `RelayLink` calls `Switch.link_packets` for
each batch in the same way. When a client is gone, `gone` and `link_closed` tell the switch, which puts back what was
not confirmed.
"""

__all__: list[str] = []
