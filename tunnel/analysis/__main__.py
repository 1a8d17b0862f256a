"""The entry point of `python -m tunnel.analysis` and of spark-submit: the same command as `tunnel-traces`."""

import sys

from tunnel.analysis.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    sys.exit(main())
