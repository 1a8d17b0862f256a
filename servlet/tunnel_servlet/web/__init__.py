"""The relay as a web service: aiohttp, the event loop, the clock, and the inline exit.

This package is the I/O around the switch. It authenticates and bounds what comes, lets users take turns at the
processor, and passes bytes in and out; where a packet goes is decided in `tunnel_servlet.switch`.

Where to start
--------------

`running.py` for the process, `application.py` for a request, `host.py` for the border to the switch.

    the process
      running.py          a relay with its listeners: signals, reloading, draining
      relay.py            the switch, the tokens and the rules, as the handlers use them
      reloading.py        reads files again, and keeps the old ones while the new cannot be used
      admin.py, metrics.py   the listener for the operator
      inline_exit.py      the exit in this process
    from a connection to a request
      acceptor.py         accepts, with limits; tls.py has the contexts, tls_input.py charges the records
      server.py           aiohttp's server, as the relay needs it
      handler.py          one connection: deadlines, turns, and charges for data that waits
      payers.py, heads.py   who pays before a token is known; requests that cost little
      bodies.py           reads bodies in their payers' turns; parts.py runs long work in parts
    from a request to the switch
      application.py      POST .../exchange and GET .../link
      host.py             gives the switch its clock and its timer, and delivers what it returns
      answer_stream.py    writes a streamed answer
      relay_link.py       the relay's half of a link; websocket.py serves one on a websocket
      websocket_guard.py  watches frames before aiohttp parses them
    people without the tunnel
      public_ports.py, public_sides.py   the ports and names for them, and their connections
      public_request.py, proxy_header.py   their requests, checked; their addresses, passed on

The way of a request
--------------------

`Acceptor` accepts the connection, `RelayHandler` bounds its headers and charges it, `application._exchange` identifies
the user, holds the bytes of the body against the user's limit, reads it and waits for the user's turn. `SwitchHost`
passes it to `Switch.request` and pumps: `_deliver` brings each response to the request that waits for it, wakes streams
and fills links, and then sets the timer. On a link, `RelayLink` calls `Switch.link_packets` for each batch in the same
way. When a client is gone, `gone` and `link_closed` tell the switch, which puts back what was not confirmed.
"""

__all__: list[str] = []
