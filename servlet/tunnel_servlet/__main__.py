"""`python -m tunnel_servlet` is `tunnel-relay`."""

import sys

from tunnel_servlet.command.main import main

sys.exit(main())
