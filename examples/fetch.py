"""Fetch a URL with the standard library alone. The program itself does not refer to the tunnel; run it as

tunnel run -- python examples/fetch.py http://web.internal:8080/
"""

import sys
import urllib.error
import urllib.request


def main() -> int:
    """Print the status and the number of bytes received."""
    if len(sys.argv) != 2:
        print("usage: fetch.py URL", file=sys.stderr)
        return 2
    try:
        with urllib.request.urlopen(sys.argv[1], timeout=60) as response:
            print("status", response.status)
            print("bytes", len(response.read()))
    except urllib.error.URLError as error:
        print("failed:", error.reason, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
