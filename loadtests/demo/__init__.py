"""`make demo`: one stream through a proxy that loses requests and responses, while the relay is killed twice.

`stage` starts the processes, `play` moves the bytes and kills the relay, `show` displays the progress, and `report`
has the figures and the verdict.
"""

__all__: list[str] = []
