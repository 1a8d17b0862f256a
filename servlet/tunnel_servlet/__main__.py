"""The command `tunnel-relay`, which `python -m tunnel_servlet` is, too."""

import sys

from tunnel.process.program import run_program


def main() -> int:
    """Run the command and return its exit code."""
    return run_program("tunnel-relay", "tunnel_servlet.command.main")


if __name__ == "__main__":
    sys.exit(main())
