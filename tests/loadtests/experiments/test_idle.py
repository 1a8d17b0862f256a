"""The cost of idle and stopped connections, measured with a few of them."""

import asyncio

import pytest
from msgspec.structs import replace

from loadtests.experiments.idle import Figures, main, measure


def test_idle_connections_cost_one_held_request_and_stopped_ones_stay_within_the_caps() -> None:
    figures = asyncio.run(measure(8))
    assert (figures.connections, figures.held_requests, figures.routes) == (8, 1, 8)
    assert 0 < figures.relay_held_bytes <= figures.cap_bytes
    assert figures.is_good


def test_figures_beyond_a_limit_are_not_good() -> None:
    good = Figures(8, 1, 0, 0, 10, 10, 8)
    assert good.is_good
    assert not replace(good, held_requests=2).is_good
    assert not replace(good, relay_held_bytes=11).is_good


def test_figures_of_connections_that_had_ended_or_readers_that_went_on_are_not_good() -> None:
    good = Figures(8, 1, 0, 0, 10, 10, 8)
    assert not replace(good, relay_held_bytes=0).is_good  # no reader was stopped
    assert not replace(good, routes=7).is_good
    assert not replace(good, connections=0, routes=0).is_good


def test_too_many_connections_are_refused(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--connections", "2049"])
    assert ended.value.code == 2
    assert "from 1 to 2048" in capsys.readouterr().err
