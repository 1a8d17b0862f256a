"""The command `tunnel-traces`, which `python -m tunnel.analysis` is, too, also for spark-submit."""

import sys

from tunnel.process.program import run_program


def main() -> int:
    """Run the command and return its exit code."""
    return run_program("tunnel-traces", "tunnel.analysis.cli")


if __name__ == "__main__":
    sys.exit(main())
