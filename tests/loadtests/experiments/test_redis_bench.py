"""redis-benchmark with and without the tunnel: a small run through real processes, and the parser and the report."""

import json

import pytest

from loadtests.experiments.redis_bench import Figures, Report, _proves_nothing, main, parse_figures

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


def test_missing_programs_are_named(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nonexistent")
    with pytest.raises(SystemExit, match="2"):
        main([])
    assert "not installed: redis-server, redis-benchmark, nginx" in capsys.readouterr().err


def test_runs_without_a_test_or_without_an_answer_prove_nothing() -> None:
    one, none = {"SET": Figures(5.0, 1.0, 2.0)}, {"SET": Figures(0.0, 0.0, 0.0)}
    assert _proves_nothing(Report(1, 1, "", "poll", one, one)) == ""
    assert "ran no test" in _proves_nothing(Report(1, 1, "nonsense", "poll"))
    assert "through the tunnel: SET" in _proves_nothing(Report(1, 1, "", "poll", one))
    assert "no request was answered" in _proves_nothing(Report(1, 1, "", "poll", one, none))
    nan = {"SET": Figures(float("nan"), 1.0, 2.0)}
    assert "no request was answered" in _proves_nothing(Report(1, 1, "", "poll", one, nan))


@pytest.mark.real("nginx", "redis-server", "redis-benchmark")
def test_an_unknown_test_of_redis_benchmark_fails(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["-n", "10", "-c", "1", "-t", "nonsense"]) == 1
    assert "ran no test" in capsys.readouterr().out
