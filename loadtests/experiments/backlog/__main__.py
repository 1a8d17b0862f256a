"""What does a backlog cost? The four measures of a message broker, with and without a replica, as a table.

How much can be piled up; how fast a sender is beside a reader that catches up; how long live messages take beside it;
and how fast what is piled up is read. Brokers, senders and readers are processes of their own, over loopback TCP.
"""

import argparse
import json
import os
import sys

import msgspec

from loadtests.experiments.backlog.run import Measures, run


def main(arguments: list[str] | None = None) -> int:
    """Print the table, or JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.backlog",
        description=__doc__,
        epilog="example: python -m loadtests.experiments.backlog --messages 1000000 --seconds 10",
    )
    parser.add_argument("--messages", type=int, default=200_000, help="of 1 KiB, piled up before (default 200000)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of each of ten phases (default 2)")
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    load = os.getloadavg()[0]
    measures = run(options.messages, options.seconds, told=tell)
    if options.json:
        print(json.dumps(msgspec.to_builtins(measures)))
    else:
        print(
            f"{os.cpu_count()} cores, load {load:.1f} before; {measures.backlog_messages:,} messages of 1 KiB piled up"
        )
        show(measures)
    return 0


def show(measures: Measures) -> None:
    """The table of the document, with figures."""
    without, beside = measures.without_replica, measures.with_replica
    print(f"{'':<58}{'no replica':>14}{'replica':>14}")

    def row(name: str, first: str, second: str = "") -> None:
        print(f"{name:<58}{first:>14}{second:>14}")

    row("capacity: bytes on disk of a message", f"{measures.bytes_per_message:,.0f}")
    row("  messages that the free disk holds", f"{measures.capacity_messages:,}")
    row("sender alone, messages/s", f"{without.sender_alone:,.0f}", f"{beside.sender_alone:,.0f}")
    row(
        "sender beside a reader that catches up",
        f"{without.sender_beside_reader:,.0f}",
        f"{beside.sender_beside_reader:,.0f}",
    )
    row("live consumer alone, p99 ms", f"{without.live_p99_ms_alone:.1f}", f"{beside.live_p99_ms_alone:.1f}")
    row(
        "live consumer beside a reader that catches up, p99 ms",
        f"{without.live_p99_ms_beside_reader:.1f}",
        f"{beside.live_p99_ms_beside_reader:.1f}",
    )
    row("reader that catches up, messages/s", f"{without.reader:,.0f}", f"{beside.reader:,.0f}")
    row(
        "  served by the replica",
        "no" if not without.reader_redirected else "yes",
        "yes" if beside.reader_redirected else "no",
    )
    row("disk: one reader, not in the cache, messages/s", f"{measures.disk_read_cold:,.0f}")
    row("disk: one reader, in the cache, messages/s", f"{measures.disk_read_warm:,.0f}")
    row("  the same for each second of processor time", f"{measures.disk_read_per_cpu_s:,.0f}")


if __name__ == "__main__":
    sys.exit(main())
