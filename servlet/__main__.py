"""`python -m servlet` is `tunnel-relay`."""

import sys

from servlet.cli import main

sys.exit(main())
