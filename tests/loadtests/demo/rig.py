"""Results of a demo that went well."""

from loadtests.demo.report import Kill, Report, Way

__all__ = ["GOOD", "MIB"]

MIB = 1 << 20
GOOD = Report(
    ways=[Way("upload", 20 * MIB, 20 * MIB, 2.0, "aa", "aa"), Way("download", 20 * MIB, 20 * MIB, 2.0, "bb", "bb")],
    kills=[Kill("upload", 0.5, 4096, 0.5, 1.0), Kill("download", 0.5, 4096, 0.5, 1.0)],
    seconds=5.0,
    exchanges=100,
    faults={"drop_request": 3, "drop_response": 4},
    repeats={"ServerDisconnectedError": 7},
    resent={"batch_given_up": 2},
    packets_sent=50,
    round_trip_us=1500,
    rto_us=1_000_000,
)
