"""`python -m tunnel_client.cli.broker` runs the command `tunnel-broker`."""

import sys

from tunnel_client.cli.broker.main import main

if __name__ == "__main__":
    sys.exit(main())
