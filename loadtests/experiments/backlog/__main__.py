"""How much does a backlog cost? Four measures of a message broker, with and without a replica, as a table.

The measures: how many messages can be stored, how fast a sender is while a reader catches up, how long live messages
take meanwhile, and how fast the backlog is read, by one reader and by several at once. Brokers, senders and readers are
separate processes on loopback TCP.
"""

import argparse
import json
import os
import sys
from itertools import zip_longest
from pathlib import Path

import msgspec

from loadtests.experiments.backlog.run import READERS, Measures, run

_READERS_MAX = 64  # processes


def main(arguments: list[str] | None = None) -> int:
    """Run the measurement, and print the table or JSON."""
    parser = argparse.ArgumentParser(
        prog="python -m loadtests.experiments.backlog",
        description=__doc__,
        epilog="example: python -m loadtests.experiments.backlog --messages 1000000 --seconds 10. Exit codes: 0 ok, "
        "2 wrong usage.",
    )
    parser.add_argument(
        "--messages", type=int, default=200_000, help="size of the backlog, in messages of 1 KiB (default 200000)"
    )
    parser.add_argument("--seconds", type=float, default=2.0, help="duration of each phase (default 2)")
    parser.add_argument(
        "--readers",
        type=_counts,
        default=READERS,
        metavar="N,N",
        help="how many readers read the backlog at once, one phase for each number (default 1,2,4,8)",
    )
    parser.add_argument(
        "--replica-dir",
        type=Path,
        metavar="DIR",
        help="create the replica's directory in DIR, which should be on another disk than the master's (default: the "
        "temporary directory, as for the master)",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    options = parser.parse_args(arguments)

    def tell(text: str) -> None:
        if sys.stderr.isatty():
            print(text, file=sys.stderr, flush=True)

    load = os.getloadavg()[0]
    measures = run(options.messages, options.seconds, options.readers, replica_directory=options.replica_dir, told=tell)
    if options.json:
        print(json.dumps(msgspec.to_builtins(measures)))
    else:
        print(
            f"{os.cpu_count()} cores, load {load:.1f} before; "
            f"{measures.backlog_messages:,} messages of 1 KiB in the backlog"
        )
        show(measures)
    return 0


def _counts(text: str) -> list[int]:
    counts = [int(each) for each in text.split(",")]
    if min(counts) < 1 or max(counts) > _READERS_MAX:
        raise ValueError
    return counts


def show(measures: Measures) -> None:
    """Print the table of the reference document, filled with figures."""
    without, beside = measures.without_replica, measures.with_replica
    print(f"{'':<58}{'no replica':>14}{'replica':>14}")

    def row(name: str, first: str, second: str = "") -> None:
        print(f"{name:<58}{first:>14}{second:>14}")

    row("capacity: bytes on disk per message", f"{measures.bytes_per_message:,.0f}")
    row("  messages that fit on the free disk", f"{measures.capacity_messages:,}")
    row("sender alone, messages/s", f"{without.sender_alone:,.0f}", f"{beside.sender_alone:,.0f}")
    row(
        "sender while a reader catches up, messages/s",
        f"{without.sender_beside_reader:,.0f}",
        f"{beside.sender_beside_reader:,.0f}",
    )
    row("live consumer alone, p99 ms", f"{without.live_p99_ms_alone:.1f}", f"{beside.live_p99_ms_alone:.1f}")
    row(
        "live consumer while a reader catches up, p99 ms",
        f"{without.live_p99_ms_beside_reader:.1f}",
        f"{beside.live_p99_ms_beside_reader:.1f}",
    )
    row("reader that catches up, messages/s", f"{without.reader:,.0f}", f"{beside.reader:,.0f}")
    row(
        "  served by the replica",
        "no" if not without.reader_redirected else "yes",
        "yes" if beside.reader_redirected else "no",
    )
    for one, other in zip_longest(without.readers, beside.readers):
        count = (one or other).count
        row(
            f"{count} reader{'s' if count > 1 else ''} at once, messages/s",
            *(f"{each.per_second:,.0f}" if each is not None else "" for each in (one, other)),
        )
        row("  the slowest of them", *(f"{each.slowest:,.0f}" if each is not None else "" for each in (one, other)))
    row("disk: one reader, data not in the page cache, messages/s", f"{measures.disk_read_cold:,.0f}")
    row("disk: one reader, data in the page cache, messages/s", f"{measures.disk_read_warm:,.0f}")
    row("  the same per second of processor time", f"{measures.disk_read_per_cpu_s:,.0f}")
    for name, sent in (("sendfile (zero copy)", measures.zero_copy), ("a copy in memory", measures.copied)):
        row(f"log to a socket by {name}, MB/s", f"{sent.mb_per_s:,.0f}")
        row("  processor time of the sender, ms per MB", f"{sent.cpu_ms_per_mb:.3f}")


if __name__ == "__main__":
    sys.exit(main())
