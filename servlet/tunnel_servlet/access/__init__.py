"""Access control: who a client is, and what it may do. These modules decide and do no I/O.

Where to start
--------------

`grants.py`, which answers the questions of the switch (`tunnel_servlet.switch.decisions`).

    who a client is
      tokens.py           tokens: their format, their owners, their terms, and the limit on wrong ones
      certificates.py     names in the certificates of clients, and whose they are
      sso.py              what a token of an identity provider must say, and what user it names
      instants.py         the points in time at which tokens end, as files write them
    what a user may do
      grants.py           all that a user may: targets, services, rates, exits
      rules.py            the rules for targets: hosts, networks and ports
      addresses.py        addresses that are no ordinary public hosts
    what a connection may take
      connections.py      the limits of connections, and of the bytes held for them
      sources.py          where connections come from, and which source holds most
      proxies.py          proxies in front of the relay whose word about an address counts

What watches tokens while the relay runs is in `tunnel_servlet.web.tokens`, what reads the files in
`tunnel_servlet.command`.
"""

__all__: list[str] = []
