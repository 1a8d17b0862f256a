"""The command `tunnel`, which `python -m tunnel_client` is, too."""

import sys

from tunnel.process.program import run_program


def main() -> int:
    """Run the command and return its exit code."""
    return run_program("tunnel", "tunnel_client.cli.main")


if __name__ == "__main__":
    sys.exit(main())
