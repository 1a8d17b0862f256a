"""`python -m tunnel.analysis`, and what spark-submit runs: the same as `tunnel-traces`."""

import sys

from tunnel.analysis.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
