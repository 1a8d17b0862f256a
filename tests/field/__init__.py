"""The field: the tunnel through many intermediaries, real and scripted, as users run it: `make test-field`.

`rows` is the table of intermediaries, as data; `hops` starts their programs; `stage` starts the relay and the client
around them; `measure` measures one row with one carrier; `waves` measures many: their transfers one after the other,
their idle times side by side. `table` renders the results, and `document` writes them to docs/PATHS.md.
"""

__all__: list[str] = []
