"""Runs the command `tunnel-relay`: `python -m tunnel_servlet`."""

import sys

from tunnel_servlet.command.main import main

sys.exit(main())
