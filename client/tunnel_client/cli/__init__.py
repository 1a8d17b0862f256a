"""The command `tunnel`, and `tunnel-broker`: arguments, options, and what commands have in common.

Where to start
--------------

`main.py`, then a command: `commands/logout.py` is the shortest, `commands/forward.py` one that serves.

    the commands
      main.py             the command `tunnel`: its commands, exit codes and log
      commands/           one module for each: forward.py, proxy.py, expose.py and connect.py lead connections; run.py
                          leads those of another program; login.py, logout.py and peers.py keep secrets and keys;
                          doctor.py and status.py look; up.py runs the file of up/, and install_unit.py lets systemd
                          keep it running
      up/                 `tunnel up`
        declaration.py    the settings in its file; file.py reads it, example.py writes one
        supervisor.py     runs the entries; keeper.py runs one, kinds.py says how each kind is served
        relay_choice.py   which relay; display.py has the lines on the terminal
      broker/             `tunnel-broker`: main.py has its arguments, serve.py runs a broker, look.py asks one
    what commands share
      options.py          the options of all commands that attach, and what follows from them
      serving.py          the options of the commands that serve, and their loop until a signal
      one_task.py         the same for a command that does one thing
      attaching.py        how long a command tries to reach the relay, and what it says meanwhile
      lookups.py          event loops that look names up without delaying their end
    what single commands need
      stdio.py            `connect`: standard input and output
      bypasses.py, run_summary.py   `run`: which programs bypass the tunnel, and what it says at its end
      service_key.py      `expose` and the broker: the key of their services
      signing_in.py       `login --sso`: the page and the code, and the wait for the person
      progress.py         the doctor: what it is doing
      status_table.py     `status`: its tables
"""

__all__: list[str] = []
