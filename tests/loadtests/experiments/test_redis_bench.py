"""redis-benchmark with and without the tunnel: a small run through real processes, and the parser and the report."""

import json

import pytest

from loadtests.experiments.redis_bench import Figures, Report, main, parse_figures, summary

SAID = """\
"test","rps","avg_latency_ms","min_latency_ms","p50_latency_ms","p95_latency_ms","p99_latency_ms","max_latency_ms"
"SET","1538.46","0.547","0.232","0.471","0.943","1.983","2.503"
"LPUSH (needed to benchmark LRANGE)","100.00","9.5","1.0","9.0","12.0","13.5","20.0"
"""


@pytest.mark.real("nginx", "redis-server", "redis-benchmark")
def test_direct_run_and_tunnel_end_without_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    code = main(["-n", "100", "-c", "10", "-t", "set,get", "--json"])
    report = json.loads(capsys.readouterr().out)
    assert (code, report["failure"]) == (0, "")
    assert list(report["direct"]) == list(report["tunnel"]) == ["SET", "GET"]


def test_the_output_of_redis_benchmark_is_parsed() -> None:
    figures = parse_figures(SAID)
    assert figures["SET"] == Figures(1538.46, 0.471, 1.983)
    assert list(figures) == ["SET", "LPUSH (needed to benchmark LRANGE)"]


def test_the_summary_shows_both_runs_side_by_side_and_failures() -> None:
    report = Report(20000, 20, "", "poll", {"SET": Figures(50000, 0.25, 1.5)}, {"SET": Figures(500, 25, 150)})
    assert "SET       50000     0.25     1.50  |         500    25.00   150.00" in summary(report)
    assert summary(report).endswith("OK: 1 tests without an error")
    report.tunnel, report.failure = {}, "Error: Server closed the connection"
    assert summary(report).endswith("FAILED: Error: Server closed the connection")


def test_missing_programs_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "not installed: redis-server, redis-benchmark, nginx" in capsys.readouterr().err
