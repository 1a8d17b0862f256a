"""The report: its format, and its arithmetic, some of it on numbers of the sample in the reference document."""

from loadtests.experiments.message_loss.report import Gap, Report, find_gaps
from loadtests.experiments.message_loss.statistics import Count, Phase, PhaseStatistics


def test_gaps_are_found_at_the_beginning_in_the_middle_and_at_the_end() -> None:
    assert find_gaps([], 0) == []
    assert find_gaps([1, 2, 3], 3) == []
    assert find_gaps([3, 1, 2, 2], 3) == []
    assert find_gaps([], 2) == [Gap(1, 3)]
    assert find_gaps([3, 4, 8], 10) == [Gap(1, 3), Gap(5, 8), Gap(9, 11)]


def test_statistics_distinguish_buffered_and_written_bytes() -> None:
    statistics = PhaseStatistics()
    for _ in range(3):
        statistics.increment_out_bytes(10)
    statistics.register_write(3, 30)
    statistics.increment_out_bytes(10)
    statistics.phase = Phase.AFTER
    statistics.increment_out_bytes(20)
    statistics.register_write(1, 20)
    assert statistics.buffered == {Phase.BEFORE: Count(4, 40), Phase.AFTER: Count(1, 20)}
    assert statistics.written == {Phase.BEFORE: Count(3, 30), Phase.AFTER: Count(1, 20)}


def sample() -> Report:
    statistics = PhaseStatistics()
    for _ in range(6):
        statistics.published[Phase.BEFORE].add(1, 100)
    for _ in range(4):
        statistics.increment_out_bytes(100)
    statistics.register_write(3, 300)
    statistics.phase = Phase.AFTER
    statistics.increment_out_bytes(100)
    statistics.register_write(1, 100)
    return Report.of("raw", "builtin", 100, [[1, 2], [5, 5]], statistics)


def test_every_line_of_the_report_comes_from_the_run() -> None:
    report = sample()
    assert (report.published, report.total, report.twice, report.lost) == (6, 4, 1, 3)
    assert report.lost == report.published - (report.total - report.twice)
    assert report.lines() == [
        "MODE raw, BROKER builtin",
        "",
        "RECEIVER",
        "  Receiver 0 Received Messages:        2",
        "  Receiver 1 Received Messages:        2",
        "  ------------------------------ -------",
        "  Total Received Messages:             4",
        "  Published Messages:                  6",
        "  Received Twice:                      1",
        "",
        "  Received Gap Message: 5",
        "  Expected Gap Message: 3",
        "  Gap: 2",
        "  Gap Bytes (Approximate): 200",
        "",
        "  Received Gap Message: 7",
        "  Expected Gap Message: 6",
        "  Gap: 1",
        "  Gap Bytes (Approximate): 100",
        "",
        "SENDER",
        "Before Disconnect...",
        "  Buffered vs Socket Messages: 4 vs 3 ... 1",
        "  Buffered vs Socket Bytes   : 400 vs 300 ... 100",
        "After Disconnect...",
        "  Buffered vs Socket Messages: 1 vs 1 ... 0",
        "  Buffered vs Socket Bytes   : 100 vs 100 ... 0",
        "Both Together...",
        "  Published vs Buffered Messages: 6 vs 5 ... 1",
    ]


def test_a_run_with_the_tunnel_in_which_nothing_broke_or_nothing_was_sent_is_no_success() -> None:
    def tunnel(ids: list[int], published: int) -> Report:
        statistics = PhaseStatistics()
        statistics.published[Phase.BEFORE].add(published, 100 * published)
        report = Report.of("tunnel", "builtin", 100, [ids], statistics)
        report.signs = {"status": 5}
        return report

    assert tunnel([1, 2], 2).failure == ""
    assert "lost 1 messages" in tunnel([1], 2).failure
    assert "1 twice" in tunnel([1, 1], 1).failure
    assert "no message was published" in tunnel([], 0).failure
    unbroken = tunnel([1, 2], 2)
    unbroken.signs = {}
    assert "no sign of the break" in unbroken.failure
    assert sample().failure == ""  # without the tunnel, losses are what the run shows
