"""The command `tunnel-broker`, which `python -m tunnel_client.cli.broker` is, too."""

import sys

from tunnel.process.program import run_program


def main() -> int:
    """Run the command and return its exit code."""
    return run_program("tunnel-broker", "tunnel_client.cli.broker.main")


if __name__ == "__main__":
    sys.exit(main())
