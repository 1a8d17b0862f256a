"""`python -m tunnel_client` is the command `tunnel`."""

import sys

from tunnel_client.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
