"""`make demo`: one stream through a proxy that loses requests and responses, and through two deaths of the relay.

`stage` starts the processes, `play` moves the bytes and kills the relay, `show` draws it while it runs, `report` says
what came of it.
"""

__all__: list[str] = []
