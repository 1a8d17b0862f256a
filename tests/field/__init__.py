"""The field: the tunnel through many intermediaries, real and scripted, as users run it: `make test-field`.

`rows` is the table of intermediaries, as data; `hops` starts their programs; `stage` starts the relay and the client
around them; `measure` moves bytes; `waves` measures rows one after the other while others are idle; `table` and
`document` print.
"""

__all__: list[str] = []
