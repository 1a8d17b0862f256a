"""The audit: a record of who reached what through the relay, and of each change of who may.

Where to start
--------------

`event.py`, then `tunnel_servlet.web.auditing`, which makes the events of a relay; those of an exit in a process of its
own come from `tunnel_servlet.command.exit_audit`.

    event.py      what a line says: the kinds of events and their fields, which docs/AUDIT.md lists
    trail.py      takes events from the event loop, and has them written by a thread; counts what is lost
    sums.py       counts, in place of single events, what one user causes beyond a limit
    files.py      the file, which is rotated; places.py has the other places: syslog and standard output
    changes.py    what a new configuration changes: tokens and rules; `Relay.reload` asks for it
    reading.py    reads the files again, for `tunnel-relay audit`
"""

__all__: list[str] = []
