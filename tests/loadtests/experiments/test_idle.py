"""The cost of idle and stopped connections, measured with a few of them."""

import asyncio

import pytest

from loadtests.experiments.idle import Figures, main, measure


def test_idle_connections_cost_one_held_request_and_stopped_ones_stay_within_the_caps() -> None:
    figures = asyncio.run(measure(8))
    assert (figures.connections, figures.held_requests) == (8, 1)
    assert 0 < figures.relay_held_bytes <= figures.cap_bytes
    assert figures.is_good


def test_figures_beyond_a_limit_are_not_good() -> None:
    assert Figures(1, 1, 0, 0, 10, 10).is_good
    assert not Figures(1, 2, 0, 0, 10, 10).is_good
    assert not Figures(1, 1, 0, 0, 11, 10).is_good


def test_too_many_connections_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--connections", "2049"])
    assert ended.value.code == 2
    assert "from 1 to 2048" in capsys.readouterr().err
